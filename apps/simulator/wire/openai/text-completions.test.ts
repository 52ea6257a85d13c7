import type OpenAI from 'openai';
import { expect, test } from 'vitest';
import { dataOf, startTestSimulator, type Json } from '../../start-test-simulator.ts';

const { openai, post } = await startTestSimulator();
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

test('several prompts are answered in order, n times each, and echoed', async () => {
  const { choices } = await complete({ prompt: ['One', 'Two'], n: 2, echo: true });
  expect(choices.map(({ index }) => index)).toEqual([0, 1, 2, 3]);
  expect(choices.map(({ text }) => text.slice(0, 3))).toEqual(['One', 'One', 'Two', 'Two']);
  expect(new Set(choices.map(({ text }) => text)).size).toBe(4);
});

test('prompts of token numbers are counted and echoed as such', async () => {
  const { choices, usage } = await complete({ prompt: [[5, 6, 7], [8]], echo: true, max_tokens: 0 });
  expect(usage?.prompt_tokens).toBe(4);
  expect(choices.map(({ text }) => text)).toEqual(['<|5|><|6|><|7|>', '<|8|>']);
});

test('best_of is paid for but only n are returned', async () => {
  const one = await complete({ max_tokens: 5 });
  const best = await complete({ max_tokens: 5, best_of: 3 });
  expect(best.choices).toEqual(one.choices);
  expect(best.usage?.completion_tokens).toBe(15);
});

test('log probabilities are parallel arrays over the text', async () => {
  const { choices } = await complete({ logprobs: 2, echo: true });
  const { tokens = [], text_offset = [], token_logprobs, top_logprobs } = choices[0]?.logprobs ?? {};
  expect(tokens.join('')).toBe(choices[0]?.text);
  for (const [index, token] of tokens.entries()) {
    expect(choices[0]?.text.slice(text_offset[index], (text_offset[index] ?? 0) + token.length)).toBe(token);
    expect(top_logprobs?.[index]?.[token]).toBe(token_logprobs?.[index]);
    expect(Object.keys(top_logprobs?.[index] ?? {})).toHaveLength(2);
  }
});

test('a stream is made of text_completion objects and says the same', async () => {
  const whole = await complete({ n: 2, logprobs: 1 });
  const response = await post('/v1/completions', {
    model: 'sim-text',
    prompt: 'Once upon',
    n: 2,
    logprobs: 1,
    stream: true,
    stream_options: { include_usage: true },
  });
  const data = dataOf(await response.text());
  expect(data.pop()).toBe('[DONE]');
  const chunks = data.map((json) => JSON.parse(json) as OpenAI.Completion);
  expect(chunks.pop()).toMatchObject({ choices: [], usage: whole.usage });
  for (const chunk of chunks) expect(chunk).toMatchObject({ id: whole.id, object: 'text_completion', usage: null });
  for (const { index, text, logprobs } of whole.choices) {
    const mine = chunks.map((chunk) => chunk.choices[0]).filter((choice) => choice?.index === index);
    expect(mine.map((choice) => choice?.text).join('')).toBe(text);
    expect(mine.flatMap((choice) => choice?.logprobs?.text_offset ?? [])).toEqual(logprobs?.text_offset);
    expect(mine.at(-1)?.finish_reason).toBe('length');
  }
  let text = '';
  for await (const chunk of await openai.completions.create({ model: 'sim-text', prompt: 'Once upon', stream: true })) {
    text += chunk.choices[0]?.text ?? '';
  }
  expect(text).toBe(whole.choices[0]?.text);
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
