import type OpenAI from 'openai';
import { expect, test } from 'vitest';
import { startTestSimulator, type Json } from '#test/test-simulator.ts';

const { post } = await startTestSimulator();
const complete = async (fields: Json): Promise<OpenAI.Completion> => {
  const response = await post('/v1/completions', { model: 'sim-text', prompt: 'Once upon', ...fields });
  expect(response.status).toBe(200);
  return (await response.json()) as OpenAI.Completion;
};

test('a completion has the old shape and sixteen tokens at most', async () => {
  const { choices, usage, ...rest } = await complete({ model: 'sim-text+100tok' });
  expect(rest).toEqual({
    id: expect.stringMatching(/^cmpl-/),
    object: 'text_completion',
    created: expect.any(Number),
    model: 'sim-text+100tok',
  });
  expect(choices).toEqual([{ text: expect.any(String), index: 0, logprobs: null, finish_reason: 'length' }]);
  expect(usage).toEqual({ prompt_tokens: 2, completion_tokens: 16, total_tokens: 18 });
});

test.for<[Json, string]>([
  [{ prompt: 7 }, 'prompt'],
  [{ prompt: [] }, 'prompt'],
  [{ prompt: ['a', 7] }, 'prompt'],
  [{ best_of: 1, n: 2 }, 'best_of'],
  [{ best_of: 2, stream: true }, 'best_of'],
  [{ logprobs: 6 }, 'logprobs'],
  [{ max_tokens: -1 }, 'max_tokens'],
])('%j is refused for %s', async ([fields, param]) => {
  const response = await post('/v1/completions', { model: 'sim-text', prompt: 'x', ...fields });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { param } });
});
