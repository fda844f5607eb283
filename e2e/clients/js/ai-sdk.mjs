// Vercel's AI SDK.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { API_KEY, BASE_URL, CHAT, PROMPT, SEEN, UNKNOWN_KEY, WEATHER_PROMPT } from "./prompts.mjs";

const provider = createOpenAICompatible({
  name: "fastllm",
  baseURL: BASE_URL,
  apiKey: API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const request = { model: provider(CHAT), temperature: 0, maxOutputTokens: 100, maxRetries: 0 };

test("a stream equals the plain response", async () => {
  const plain = await generateText({ ...request, prompt: PROMPT });
  const streamed = streamText({ ...request, prompt: PROMPT });
  let pieces = 0;
  let text = "";
  for await (const piece of streamed.textStream) {
    pieces += 1;
    text += piece;
  }
  assert.ok(pieces > 5);
  assert.equal(text, plain.text);
  assert.equal((await streamed.usage).outputTokens, plain.usage.outputTokens);
});

test("tools are called", async () => {
  const weather = tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.string().max(20) }),
    execute: async ({ city }) => `fog in ${city}`,
  });
  // Such a small model calls a function only after examples.
  const seen = SEEN.flatMap((city) => {
    const of = { toolCallId: city, toolName: "weather" };
    return [
      { role: "user", content: WEATHER_PROMPT(city) },
      { role: "assistant", content: [{ type: "tool-call", ...of, input: { city } }] },
      { role: "tool", content: [{ type: "tool-result", ...of, output: { type: "text", value: "fog" } }] },
    ];
  });
  const messages = [...seen, { role: "user", content: WEATHER_PROMPT("Kiel") }];
  const response = await generateText({ ...request, messages, tools: { weather }, toolChoice: "required" });
  assert.deepEqual(response.toolResults.map((result) => result.output), ["fog in Kiel"]);
});

test("an object follows its schema", async () => {
  const schema = z.object({ name: z.string().max(20), masts: z.number().int().min(1).max(5) });
  const { object } = await generateObject({ ...request, schema, prompt: "Describe a ship." });
  assert.ok(object.masts >= 1 && object.masts <= 5);
});

test("an error has its status", async () => {
  const stranger = createOpenAICompatible({ name: "fastllm", baseURL: BASE_URL, apiKey: UNKNOWN_KEY });
  const failed = generateText({ ...request, model: stranger(CHAT), prompt: PROMPT });
  await assert.rejects(refused, (error) => APICallError.isInstance(error) && error.statusCode === 401);
});
