// Vercel's AI SDK: embeddings.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany } from "ai";
import { API_KEY, BASE_URL, EMBEDDINGS } from "./prompts.mjs";

test("embeddings", async () => {
  const provider = createOpenAICompatible({ name: "fastllm", baseURL: BASE_URL, apiKey: API_KEY });
  const model = provider.textEmbeddingModel(EMBEDDINGS);
  const made = await embedMany({ model, values: ["harbour", "ship"], maxRetries: 0 });
  assert.deepEqual(made.embeddings.map((one) => one.length), [576, 576]);
});
