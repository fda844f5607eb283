// The official client.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, CHAT, EMBEDDINGS, MESSAGES, NOT_GRANTED, SEEN, STRANGER, WEATHER_QUESTION } from "./asked.mjs";

const options = { baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 60_000 };
const client = new OpenAI(options);

const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 20 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

// So small a model calls a function once it has seen how that goes.
const called = (city) => [
  { role: "user", content: WEATHER_QUESTION(city) },
  {
    role: "assistant",
    content: null,
    tool_calls: [{ id: city, type: "function", function: { name: "weather", arguments: JSON.stringify({ city }) } }],
  },
  { role: "tool", tool_call_id: city, content: "fog" },
];

const ship = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, masts: { type: "integer", minimum: 1, maximum: 5 } },
  required: ["name", "masts"],
  additionalProperties: false,
};

test("a stream says what the plain answer says", async () => {
  const asked = { model: CHAT, messages: MESSAGES, temperature: 0, max_tokens: 24 };
  const plain = await client.chat.completions.create(asked);
  assert.ok(plain.usage.completion_tokens > 0);
  let said = "";
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  for await (const chunk of stream) said += chunk.choices[0]?.delta.content ?? "";
  assert.notEqual(said, "");
  assert.equal(said, plain.choices[0].message.content);
});

test("tools, plain and streamed", async () => {
  const asked = {
    model: CHAT,
    messages: [...SEEN.flatMap(called), { role: "user", content: WEATHER_QUESTION("Kiel") }],
    tools: [weather],
    tool_choice: "required",
    temperature: 0,
    max_tokens: 100,
  };
  const plain = await client.chat.completions.create(asked);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  for (const answer of [plain, streamed]) {
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Kiel" });
  }
});

test("an answer follows its schema", async () => {
  const answer = await client.chat.completions.create({
    model: CHAT,
    messages: [{ role: "user", content: "Describe a ship." }],
    response_format: { type: "json_schema", json_schema: { name: "ship", schema: ship, strict: true } },
    temperature: 0,
    max_tokens: 100,
  });
  const found = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(found).sort(), ["masts", "name"]);
});

test("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, [CHAT, EMBEDDINGS]);
});

test("refusals are typed", async () => {
  const asked = { model: CHAT, messages: MESSAGES };
  const stranger = new OpenAI({ ...options, apiKey: STRANGER });
  await assert.rejects(stranger.chat.completions.create(asked), OpenAI.AuthenticationError);
  const unknown = client.chat.completions.create({ ...asked, model: "nobody-serves-this" });
  await assert.rejects(unknown, (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  const notGranted = client.chat.completions.create({ ...asked, model: NOT_GRANTED });
  await assert.rejects(notGranted, OpenAI.PermissionDeniedError);
});

test("a stream may be left", async () => {
  const stream = await client.chat.completions.create({ model: CHAT, messages: MESSAGES, max_tokens: 500, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
  assert.equal(stream.controller.signal.aborted, true);
});
