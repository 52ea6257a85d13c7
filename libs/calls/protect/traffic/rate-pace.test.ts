import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { renewShare, type CallLimit } from '#libs/limits/call-limit.ts';
import { PacedCalls } from './paced-calls.ts';
import { RatePace } from './rate-pace.ts';

const headers = (kind: string, max: number, remaining: number, reset: string): Record<string, string> => ({
  [`x-ratelimit-limit-${kind}`]: String(max),
  [`x-ratelimit-remaining-${kind}`]: String(remaining),
  [`x-ratelimit-reset-${kind}`]: reset,
});

/** Begins calls until the pace does not allow another one. Returns how many. */
function burst(pace: RatePace, nowMs: number): number {
  let calls = 0;
  for (; calls < 1_000 && pace.mayBegin(nowMs); calls += 1) pace.begin();
  return calls;
}

describe('the pace of calls', () => {
  test('is free without headers, or with headers that make no sense', () => {
    const pace = new RatePace();
    for (const [max, remaining, reset] of [
      ['600', '0', '2026-01-01T00:00:00Z'],
      ['600', '0', '1767225600'],
      ['600', '0', ''],
      ['0', '0', '1s'],
      ['-1', '0', '1s'],
      ['600', 'none', '1s'],
    ] as const) {
      const reported = {
        'x-ratelimit-limit-requests': max,
        'x-ratelimit-remaining-requests': remaining,
        'x-ratelimit-reset-requests': reset,
      };
      pace.learn({ status: 200, headers: reported }, pace.begin(), 1, 0);
    }
    expect(burst(pace, 0)).toBe(1_000);
  });

  test.each(['58.8s', '58.8', '58800ms', '58s800ms', '0m58s800ms'])(
    'follows the reported rate, with a reset of %s',
    (reset) => {
      const pace = new RatePace();
      pace.learn({ status: 200, headers: headers('requests', 600, 12, reset) }, pace.begin(), 1, 0);
      expect(burst(pace, 0)).toBe(0);
      expect(burst(pace, 1_000)).toBe(10);
      expect(burst(pace, 1_500)).toBe(5);
    },
  );

  test('is that of this part of the limit', () => {
    const pace = new RatePace();
    pace.learn({ status: 200, headers: headers('requests', 600, 300, '30s') }, pace.begin(), 1 / 3, 0);
    expect(burst(pace, 0)).toBe(96);
    expect(burst(pace, 3_000)).toBe(10);
  });

  test('counts the calls that have begun since the one that was answered', () => {
    const pace = new RatePace();
    const marks = Array.from({ length: 20 }, () => pace.begin());
    for (const mark of marks) pace.learn({ status: 200, headers: headers('requests', 600, 50, '55s') }, mark, 1, 0);
    // The last call has left 50, and 2% of the limit are not used.
    expect(burst(pace, 0)).toBe(38);
  });

  test('is that of tokens, by the average of the calls', () => {
    const pace = new RatePace();
    const usage = { inputTokens: 900, outputTokens: 100, cachedTokens: 0, reasoningTokens: 0 };
    pace.learn({ status: 200, headers: headers('tokens', 60_000, 6_200, '53.8s'), usage }, pace.begin(), 1, 0);
    expect(burst(pace, 0)).toBe(5);
    expect(burst(pace, 10_000)).toBe(10);
  });

  test('is that of the tokens of outputs, which are limited separately', () => {
    const pace = new RatePace();
    const usage = { inputTokens: 900, outputTokens: 100, cachedTokens: 0, reasoningTokens: 0 };
    const reported = {
      ...headers('input-tokens', 600_000, 500_000, '6s'),
      ...headers('output-tokens', 6_000, 620, '53.8s'),
    };
    pace.learn({ status: 200, headers: reported, usage }, pace.begin(), 1, 0);
    expect(burst(pace, 0)).toBe(5);
    expect(burst(pace, 10_000)).toBe(10);
  });

  test.each([
    ['a limit of one request', 'requests', 1, 1],
    ['a part of a limit that is less than one request', 'requests', 3, 1 / 4],
    ['a limit of fewer tokens than a call uses', 'tokens', 500, 1],
  ] as const)('lets a call begin when %s is full', (_what, kind, max, part) => {
    const pace = new RatePace();
    const usage = { inputTokens: 900, outputTokens: 100, cachedTokens: 0, reasoningTokens: 0 };
    pace.learn({ status: 200, headers: headers(kind, max, 0, '60s'), usage }, pace.begin(), part, 0);
    expect(burst(pace, 0)).toBe(0);
    expect(burst(pace, 130_000)).toBe(1);
    expect(burst(pace, 140_000)).toBe(0);
  });

  test('is that of a day, and is not faster when a window ends soon', () => {
    const pace = new RatePace();
    pace.learn({ status: 200, headers: headers('requests', 2_400, 1_200, '12h') }, pace.begin(), 1, 0);
    expect(burst(pace, 0)).toBe(1_000);
    expect(burst(pace, 0)).toBe(152);
    expect(burst(pace, 36_001)).toBe(1);
    const other = new RatePace();
    other.learn({ status: 200, headers: headers('requests', 600, 12, '1s') }, other.begin(), 1, 0);
    expect(burst(other, 1_000)).toBe(10);
  });
});

describe('three workers and an API', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  test('exceed 600 requests per minute by at most 2%', async () => {
    const perMs = 600 / 60_000;
    const bucket = { level: 600, atMs: Date.now() };
    const sent = { accepted: 0, rejected: 0, live: 0, liveRejected: 0 };
    /** The provider answers after 2 s, and rejects at once. */
    const call = (isLive: boolean, onEnd: (status: number, reported: Record<string, string>) => void): void => {
      bucket.level = Math.min(600, bucket.level + (Date.now() - bucket.atMs) * perMs);
      bucket.atMs = Date.now();
      const isAccepted = bucket.level >= 1;
      if (isAccepted) bucket.level -= 1;
      sent[isAccepted ? 'accepted' : 'rejected'] += 1;
      if (isLive) sent[isAccepted ? 'live' : 'liveRejected'] += 1;
      const reset = `${Math.ceil((600 - bucket.level) / perMs)}ms`;
      const reported = headers('requests', 600, Math.floor(bucket.level), reset);
      setTimeout(() => onEnd(isAccepted ? 200 : 429, reported), isAccepted ? 2_000 : 50);
    };
    const deps = { now: () => Date.now(), hasCapacity: () => true, onUngranted: () => {} };
    const [api, ...workers] = Array.from({ length: 4 }, () => new PacedCalls(deps)) as [PacedCalls, ...PacedCalls[]];
    let limit: CallLimit = { learned: 400, isAnswered: true, rejectedAtMs: null, burst: null, shares: {} };
    for (const [index, paced] of [api, ...workers].entries()) {
      setTimeout(() => {
        setInterval(() => {
          const report = paced.report();
          if (report === null) return;
          const renewed = renewShare(limit, `process_${index}`, report, Date.now());
          limit = renewed.limit;
          paced.take(renewed.grant, report);
        }, 1_000);
      }, index * 230);
    }
    const stopping = new AbortController();
    const work = async (paced: PacedCalls): Promise<void> => {
      for (;;) {
        const begun = paced.tryBegin() ?? (await paced.wait('ws', stopping.signal));
        call(false, (status, reported) =>
          paced.end(status === 200 ? 'answered' : 'rejected', { status, headers: reported }, begun),
        );
      }
    };
    for (const paced of workers) for (let line = 0; line < 4; line += 1) work(paced).catch(() => {});
    setInterval(() => {
      api.beginLive();
      call(true, (status, reported) =>
        api.end(status === 200 ? 'answered' : 'rejected', { status, headers: reported }),
      );
    }, 500);
    await vi.advanceTimersByTimeAsync(300_000);
    expect(sent.rejected / sent.accepted).toBeLessThanOrEqual(0.02);
    expect(sent.liveRejected / sent.live).toBeLessThanOrEqual(0.01);
    expect(sent.accepted).toBeGreaterThan(0.98 * (600 + 3_000));
    stopping.abort();
  });
});
