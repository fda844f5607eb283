// The official client: one model.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, CHAT } from "./prompts.mjs";

test("one model", async () => {
  const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, timeout: 60_000 });
  assert.equal((await client.models.retrieve(CHAT)).id, CHAT);
});
