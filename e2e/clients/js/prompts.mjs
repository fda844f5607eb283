// The prompts of all clients, as in prompts.py.
export const { BASE_URL, API_KEY, CHAT, EMBEDDINGS, NOT_GRANTED } = process.env;

export const PROMPT = "Name three things that one finds in a harbour.";
export const MESSAGES = [{ role: "user", content: PROMPT }];
export const SEEN = ["Bonn", "Oslo"];
export const WEATHER_PROMPT = (city) => `What is the weather in ${city}?`;

// A key that does not exist.
export const UNKNOWN_KEY = "sk-wrong";
