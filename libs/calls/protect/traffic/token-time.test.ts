import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { PacedCalls, type Begun } from './paced-calls.ts';
import { TokenTime } from './token-time.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Makes calls of one second with `tokens` output tokens for a while, and returns the limit that was learned. */
async function makeCalls(paced: PacedCalls, tokens: number, forMs: number): Promise<number> {
  const stopping = new AbortController();
  const usage = { inputTokens: 10, outputTokens: tokens, cachedTokens: 0, reasoningTokens: 0 };
  const work = async (): Promise<void> => {
    for (;;) {
      const begun: Begun = paced.tryBegin() ?? (await paced.wait('ws', stopping.signal));
      setTimeout(() => paced.end('answered', { status: 200, headers: {}, usage }, begun), 1_000);
    }
  };
  for (let line = 0; line < 4; line += 1) work().catch(() => {});
  await vi.advanceTimersByTimeAsync(forMs);
  stopping.abort();
  await vi.advanceTimersByTimeAsync(1_000);
  return paced.limit;
}

const createCalls = (): PacedCalls => new PacedCalls({ now: () => Date.now(), hasCapacity: () => true });

test('the limit does not grow while each output token takes much longer than usual', async () => {
  const paced = createCalls();
  const before = await makeCalls(paced, 100, 2_000);
  expect(before).toBeGreaterThan(32);
  // The first answers are those of the calls that were in flight.
  const slow = await makeCalls(paced, 25, 2_500);
  expect(await makeCalls(paced, 25, 5_000)).toBe(slow);
});

test('a time per token that lasts becomes the usual one', () => {
  const time = new TokenTime();
  const isSlow = (ms: number, steps: number): boolean => {
    let last = false;
    for (let step = 0; step < steps; step += 1) {
      time.add(ms, 100);
      last = time.step();
    }
    return last;
  };
  expect(isSlow(1_000, 100)).toBe(false);
  expect(isSlow(2_000, 20)).toBe(true);
  expect(isSlow(2_000, 20)).toBe(false);
  expect(isSlow(1_000, 20)).toBe(false);
});

test('the limit grows with answers of any length while the time of each token stays the same, and with embeddings', async () => {
  const paced = createCalls();
  let before = 0;
  for (const tokens of [100, 110, 90, 0]) {
    const limit = await makeCalls(paced, tokens, 1_000);
    expect(limit).toBeGreaterThan(before);
    before = limit;
  }
});
