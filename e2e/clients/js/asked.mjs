// What every client is asked to do, as in asked.py.
export const { BASE_URL, API_KEY, CHAT, EMBEDDINGS, NOT_GRANTED } = process.env;

export const QUESTION = "Name three things that one finds in a harbour.";
export const MESSAGES = [{ role: "user", content: QUESTION }];
export const SEEN = ["Bonn", "Oslo"];
export const WEATHER_QUESTION = (city) => `What is the weather in ${city}?`;

// Nobody knows it.
export const STRANGER = "sk-wrong";
