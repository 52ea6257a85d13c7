import fc from 'fast-check';
import { expect, test } from 'vitest';
import { estimateInput, estimateTokens } from './estimate-tokens.ts';

test.each<[string, Record<string, unknown>, number]>([
  ['texts of messages', { messages: [{ role: 'user', content: 'x'.repeat(400) }] }, 104],
  [
    'parts of messages, and none for an image',
    {
      messages: [
        { role: 'system', content: 'x'.repeat(40) },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'x'.repeat(40) },
            { type: 'image_url', image_url: { url: `data:image/png;base64,${'A'.repeat(10_000)}` } },
          ],
        },
      ],
    },
    28,
  ],
  ['an input of embeddings', { input: ['x'.repeat(40), 'x'.repeat(40)] }, 20],
  ['an input of tokens', { input: [1, 2, 3] }, 3],
  ['a prompt', { prompt: 'x'.repeat(8) }, 2],
  ['tools by their schemas', { messages: [], tools: [{ type: 'function' }] }, 6],
  ['at least one token', {}, 1],
])('the input is estimated from %s', (_what, body, tokens) => {
  expect(estimateInput(body)).toBe(tokens);
});

const bounds = ['max_tokens', 'max_completion_tokens', 'max_output_tokens', 'n', 'best_of', 'prompt', 'anything'];
// JSON.parse reads 1e400 as Infinity.
const anyNumber = fc.oneof(
  fc.double(),
  fc.integer(),
  fc.constantFrom(-1e9, 1e308, -1e308, Infinity, -Infinity, 1e-300),
);
const anyBody = fc.dictionary(fc.constantFrom(...bounds), fc.oneof(anyNumber, fc.jsonValue()));

test('no request is expected to use less than nothing, or more than any model can', () => {
  fc.assert(
    fc.property(anyNumber, anyBody, fc.constantFrom('chat', 'responses', 'threads'), (bytes, body, operation) => {
      const { inputTokens, outputTokensMax, choices } = estimateTokens(bytes, body, operation);
      for (const tokens of [inputTokens, outputTokensMax ?? 0, choices]) {
        expect(Number.isSafeInteger(tokens) && tokens >= 0 && tokens <= 1_000_000_000).toBe(true);
      }
      expect(choices).toBeGreaterThan(0);
    }),
    { numRuns: 2_000 },
  );
});

test('a completion that only asks for the probabilities of its prompt reserves the input', () => {
  const body = { prompt: 'x'.repeat(400), max_tokens: 0, echo: true, logprobs: 1 };
  expect(estimateTokens(400, body, 'completions').inputTokens).toBe(100);
});

test('the input of a run is estimated by its bound, because its thread is not in its body', () => {
  expect(estimateTokens(40, { max_prompt_tokens: 500 }, 'threads').inputTokens).toBe(510);
  expect(estimateTokens(40, {}, 'threads').inputTokens).toBe(1_010);
});

test.each<[string, string, Record<string, unknown>, number | null]>([
  ['the larger of two bounds', 'chat', { max_tokens: 60_000, max_completion_tokens: 1 }, 60_000],
  ['a bound for each choice', 'chat', { max_tokens: 10, n: 3 }, 30],
  ['all candidates, of which the best is returned', 'completions', { max_tokens: 10, n: 2, best_of: 5 }, 50],
  ['a bound for each prompt', 'completions', { max_tokens: 10, prompt: ['a', 'b', 'c'] }, 30],
  ['one prompt in tokens', 'completions', { max_tokens: 10, prompt: [1, 2, 3] }, 10],
  ['no bound below 1', 'chat', { max_tokens: -1e9 }, null],
  ['no bound that the operation does not have', 'chat', { max_output_tokens: 1 }, null],
  ['the bound of a response', 'responses', { max_output_tokens: 7, max_tokens: 1 }, 7],
])('the output is estimated by %s', (_what, operation, body, tokens) => {
  expect(estimateTokens(0, body, operation).outputTokensMax).toBe(tokens);
});

test('a bound where Google does not look does not lower the estimate of a call in its format', () => {
  const body = { contents: [], max_tokens: 1, generationConfig: { maxOutputTokens: 1_000 } };
  expect(estimateTokens(100, body, 'generate_content').outputTokensMax).toBe(1_000);
});
