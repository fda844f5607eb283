// The official client, beyond chat.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, CHAT, EMBEDDINGS } from "./asked.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 60_000 });

test("one model", async () => {
  assert.equal((await client.models.retrieve(CHAT)).id, CHAT);
});

test("embeddings", async () => {
  const made = await client.embeddings.create({ model: EMBEDDINGS, input: ["harbour", "ship"] });
  assert.deepEqual(made.data.map((one) => one.embedding.length), [576, 576]);
});
