// The official client.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, CHAT, EMBEDDINGS, MESSAGES, NOT_GRANTED, SEEN, UNKNOWN_KEY, WEATHER_PROMPT } from "./prompts.mjs";

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

// Such a small model calls a function only after examples.
const called = (city) => [
  { role: "user", content: WEATHER_PROMPT(city) },
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

test("a stream equals the plain response", async () => {
  const request = { model: CHAT, messages: MESSAGES, temperature: 0, max_tokens: 24 };
  const plain = await client.chat.completions.create(request);
  assert.ok(plain.usage.completion_tokens > 0);
  let streamed = "";
  const stream = await client.chat.completions.create({ ...request, stream: true });
  for await (const chunk of stream) streamed += chunk.choices[0]?.delta.content ?? "";
  assert.notEqual(streamed, "");
  assert.equal(streamed, plain.choices[0].message.content);
});

test("tools, plain and streamed", async () => {
  const request = {
    model: CHAT,
    messages: [...SEEN.flatMap(called), { role: "user", content: WEATHER_PROMPT("Kiel") }],
    tools: [weather],
    tool_choice: "required",
    temperature: 0,
    max_tokens: 100,
  };
  const plain = await client.chat.completions.create(request);
  const streamed = await client.chat.completions.stream(request).finalChatCompletion();
  for (const response of [plain, streamed]) {
    const [call] = response.choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Kiel" });
  }
});

test("a response follows its schema", async () => {
  const response = await client.chat.completions.create({
    model: CHAT,
    messages: [{ role: "user", content: "Describe a ship." }],
    response_format: { type: "json_schema", json_schema: { name: "ship", schema: ship, strict: true } },
    temperature: 0,
    max_tokens: 100,
  });
  const found = JSON.parse(response.choices[0].message.content);
  assert.deepEqual(Object.keys(found).sort(), ["masts", "name"]);
});

test("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, [CHAT, EMBEDDINGS]);
});

test("errors are typed", async () => {
  const request = { model: CHAT, messages: MESSAGES };
  const stranger = new OpenAI({ ...options, apiKey: UNKNOWN_KEY });
  await assert.rejects(stranger.chat.completions.create(request), OpenAI.AuthenticationError);
  const unknown = client.chat.completions.create({ ...request, model: "nobody-serves-this" });
  await assert.rejects(unknown, (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  const notGranted = client.chat.completions.create({ ...request, model: NOT_GRANTED });
  await assert.rejects(notGranted, OpenAI.PermissionDeniedError);
});

test("a stream may be abandoned", async () => {
  const stream = await client.chat.completions.create({ model: CHAT, messages: MESSAGES, max_tokens: 500, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
  assert.equal(stream.controller.signal.aborted, true);
});
