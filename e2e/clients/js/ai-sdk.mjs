// Vercel's AI SDK.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { API_KEY, BASE_URL, CHAT, QUESTION, SEEN, STRANGER, WEATHER_QUESTION } from "./asked.mjs";

const provider = createOpenAICompatible({
  name: "fastllm",
  baseURL: BASE_URL,
  apiKey: API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: provider(CHAT), temperature: 0, maxOutputTokens: 100, maxRetries: 0 };

test("a stream says what the plain answer says", async () => {
  const plain = await generateText({ ...asked, prompt: QUESTION });
  const streamed = streamText({ ...asked, prompt: QUESTION });
  let pieces = 0;
  let said = "";
  for await (const piece of streamed.textStream) {
    pieces += 1;
    said += piece;
  }
  assert.ok(pieces > 5);
  assert.equal(said, plain.text);
  assert.equal((await streamed.usage).outputTokens, plain.usage.outputTokens);
});

test("tools are called", async () => {
  const weather = tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.string().max(20) }),
    execute: async ({ city }) => `fog in ${city}`,
  });
  // So small a model calls a function once it has seen how that goes.
  const seen = SEEN.flatMap((city) => {
    const of = { toolCallId: city, toolName: "weather" };
    return [
      { role: "user", content: WEATHER_QUESTION(city) },
      { role: "assistant", content: [{ type: "tool-call", ...of, input: { city } }] },
      { role: "tool", content: [{ type: "tool-result", ...of, output: { type: "text", value: "fog" } }] },
    ];
  });
  const messages = [...seen, { role: "user", content: WEATHER_QUESTION("Kiel") }];
  const answer = await generateText({ ...asked, messages, tools: { weather }, toolChoice: "required" });
  assert.deepEqual(answer.toolResults.map((result) => result.output), ["fog in Kiel"]);
});

test("an object follows its schema", async () => {
  const schema = z.object({ name: z.string().max(20), masts: z.number().int().min(1).max(5) });
  const { object } = await generateObject({ ...asked, schema, prompt: "Describe a ship." });
  assert.ok(object.masts >= 1 && object.masts <= 5);
});

test("a refusal carries its status", async () => {
  const stranger = createOpenAICompatible({ name: "fastllm", baseURL: BASE_URL, apiKey: STRANGER });
  const refused = generateText({ ...asked, model: stranger(CHAT), prompt: QUESTION });
  await assert.rejects(refused, (error) => APICallError.isInstance(error) && error.statusCode === 401);
});
