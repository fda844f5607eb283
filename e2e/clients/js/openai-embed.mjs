// The official client: embeddings.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, EMBEDDINGS } from "./prompts.mjs";

test("embeddings", async () => {
  const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 60_000 });
  const made = await client.embeddings.create({ model: EMBEDDINGS, input: ["harbour", "ship"] });
  assert.deepEqual(made.data.map((one) => one.embedding.length), [576, 576]);
});
