import { describe, expect, test } from 'vitest';
import { LearnedLimit } from './learned-limit.ts';

type Provider = { allowed: number; latencyMs: number; rejectsAfterMs: number };

/**
 * Calls `lines` lines in virtual time: a provider with `allowed` calls at a time answers each after its latency, and
 * rejects what is beyond. A rejected line is called again after `retryMs`.
 */
function simulate(limit: LearnedLimit, provider: Provider, lines: number, retryMs = 1_000) {
  const tickMs = 10;
  let nowMs = 0;
  let waiting = lines;
  let answered = 0;
  let running = 0;
  let calls = 0;
  let rejected = 0;
  const due = new Map<number, (() => void)[]>();
  const at = (ms: number, what: () => void): void => {
    const tick = Math.ceil(ms / tickMs);
    due.set(tick, [...(due.get(tick) ?? []), what]);
  };
  const isOver = (): boolean => answered >= lines;
  while (!isOver()) {
    for (const what of due.get(nowMs / tickMs) ?? []) what();
    due.delete(nowMs / tickMs);
    if (nowMs % 250 === 0) limit.grow(nowMs);
    while (waiting > 0 && limit.mayBegin()) {
      const others = limit.begin();
      waiting -= 1;
      calls += 1;
      if (running < provider.allowed) {
        running += 1;
        at(nowMs + provider.latencyMs, () => {
          running -= 1;
          answered += 1;
          limit.end('answered', nowMs, others);
        });
      } else {
        rejected += 1;
        at(nowMs + provider.rejectsAfterMs, () => {
          limit.end('rejected', nowMs, others);
          at(nowMs + retryMs, () => {
            waiting += 1;
          });
        });
      }
    }
    nowMs += tickMs;
  }
  const idealMs = Math.ceil(lines / provider.allowed) * provider.latencyMs;
  return { ofIdeal: idealMs / nowMs, rejectedShare: rejected / calls };
}

describe('the learned limit, in virtual time', () => {
  test('reaches 2,000 calls of ten seconds cold, and uses them when it is warm', () => {
    const provider = { allowed: 2_000, latencyMs: 10_000, rejectsAfterMs: 50 };
    const limit = new LearnedLimit();
    const cold = simulate(limit, provider, 20_000);
    const warm = simulate(limit, provider, 20_000);
    expect(cold.ofIdeal).toBeGreaterThanOrEqual(0.85);
    expect(cold.rejectedShare).toBeLessThan(0.02);
    expect(warm.ofIdeal).toBeGreaterThanOrEqual(0.92);
    expect(warm.rejectedShare).toBeLessThan(0.02);
  });

  test('stays at 50 calls of ten seconds', () => {
    const found = simulate(new LearnedLimit(), { allowed: 50, latencyMs: 10_000, rejectsAfterMs: 50 }, 2_000);
    expect(found.ofIdeal).toBeGreaterThanOrEqual(0.95);
    expect(found.rejectedShare).toBeLessThan(0.02);
  });

  test('stays at 200 calls of a second', () => {
    const found = simulate(new LearnedLimit(), { allowed: 200, latencyMs: 1_000, rejectsAfterMs: 50 }, 20_000);
    expect(found.ofIdeal).toBeGreaterThanOrEqual(0.9);
    expect(found.rejectedShare).toBeLessThan(0.02);
  });

  test('a provider that never answers gets no more than a few hundred calls', () => {
    const limit = new LearnedLimit();
    for (let nowMs = 0; nowMs < 600_000; nowMs += 250) {
      limit.grow(nowMs);
      while (limit.mayBegin()) limit.begin();
    }
    expect(limit.inFlight).toBeLessThanOrEqual(437);
  });

  test('a burst of rejections takes half of the limit at most, so that one bad second does not stop a batch', () => {
    const limit = new LearnedLimit();
    for (let call = 0; call < 32; call += 1) limit.begin();
    for (let call = 0; call < 32; call += 1) limit.end('rejected', call);
    expect(limit.current).toBe(16);
  });

  test('it does not grow while it is not used', () => {
    const limit = new LearnedLimit();
    limit.begin();
    limit.end('answered', 0);
    for (let nowMs = 0; nowMs < 60_000; nowMs += 250) limit.grow(nowMs);
    expect(limit.current).toBe(32);
  });
});
