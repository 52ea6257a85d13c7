import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Usage } from '#libs/prices/usage.ts';
import { plausibleUsage } from './plausible-usage.ts';

const usedBy = (body: object, secretOrigin: string | null) => ({
  request: { operation: 'chat' as const, body: Buffer.from(JSON.stringify(body)) },
  target: { secretOrigin },
});
const callers = usedBy({ max_tokens: 100 }, null);
const stored = usedBy({ max_tokens: 100 }, 'https://api.openai.com');
const tokens = (inputTokens: number, outputTokens: number, more: Partial<Usage> = {}): Usage => ({
  inputTokens,
  outputTokens,
  cachedTokens: 0,
  reasoningTokens: 0,
  ...more,
});

test.each([
  ['a caller’s own credential', callers, tokens(90_000, 5)],
  ['a stored credential', stored, tokens(2_000_000, 900_000, { cachedTokens: 5, serviceTier: 'flex' })],
  ['a long text', usedBy({ x: 'x'.repeat(800_000) }, null), tokens(799_000, 1)],
  ['a large bound', usedBy({ max_tokens: 200_000 }, null), tokens(1, 790_000)],
])('usage that is possible with %s is kept as it is', (_what, by, usage) => {
  expect(plausibleUsage(usage, by)).toBe(usage);
});

test.each([
  ['a caller’s own credential', callers, tokens(9e15, 5), tokens(5, 5)],
  ['a stored credential', stored, tokens(3, 11_000_000), tokens(3, 100)],
  ['no bound', usedBy({ n: 2 }, null), tokens(3, 9e15, { reasoningTokens: 9e15 }), tokens(2, 2_000)],
])('usage that is impossible with %s is an estimate, and marked', (_what, by, usage, estimate) => {
  expect(plausibleUsage(usage, by)).toEqual({ ...estimate, isImplausible: true });
});

test('a detail is never more than the sum that it is part of', () => {
  const count = fc.nat(2_000);
  const usage = fc.record({
    inputTokens: count,
    outputTokens: count,
    cachedTokens: count,
    reasoningTokens: count,
    audioInputTokens: count,
    cacheWriteTokens: count,
    imageOutputTokens: count,
  });
  fc.assert(
    fc.property(usage, (reported) => {
      const { inputTokens, outputTokens, ...details } = plausibleUsage(reported, stored);
      expect([inputTokens, outputTokens]).toEqual([reported.inputTokens, reported.outputTokens]);
      const { reasoningTokens, imageOutputTokens, ...ofInput } = details as typeof reported;
      expect(Math.max(...Object.values(ofInput))).toBeLessThanOrEqual(inputTokens);
      expect(Math.max(reasoningTokens, imageOutputTokens)).toBeLessThanOrEqual(outputTokens);
    }),
  );
});
