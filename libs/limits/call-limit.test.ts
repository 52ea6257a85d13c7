import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { renewShare, shareMs, type CallGrant, type CallLimit, type CallReport } from './call-limit.ts';

const quiet: CallReport = {
  number: 1,
  answered: 0,
  limit: 0,
  whole: 32,
  live: 0,
  background: 0,
  wantsMore: false,
  isAnswered: true,
  isRejected: false,
  rejectedAgoMs: null,
};

/** Processes that share a limit. Each answer is the next report's `answered`. */
class Sharing {
  limit: CallLimit;
  nowMs = 1_000_000;
  numbers = new Map<string, number>();

  constructor(learned: number) {
    this.limit = { learned, isAnswered: true, rejectedAtMs: null, burst: null, shares: {} };
  }

  /** `learned`: by how much the process has changed its part. */
  renew(holder: string, { learned = 0, ...more }: Partial<CallReport> & { learned?: number }): CallGrant {
    const answered = this.numbers.get(holder) ?? 0;
    this.numbers.set(holder, answered + 1);
    const { live = 0, grant = 0 } = this.limit.shares[holder] ?? {};
    const report = { ...quiet, number: answered + 1, answered, limit: live + grant + learned, ...more };
    const renewed = renewShare(this.limit, holder, report, this.nowMs);
    this.limit = renewed.limit;
    return renewed.grant;
  }

  grants(): Record<string, number> {
    return Object.fromEntries(Object.entries(this.limit.shares).map(([holder, { grant }]) => [holder, grant]));
  }

  /** What is granted to background calls and kept for live ones. */
  sum(): number {
    return Object.values(this.limit.shares).reduce((sum, { grant, live }) => sum + grant + live, 0);
  }
}

const busy = { wantsMore: true };

describe('the shares of a limit of calls', () => {
  test('are equal for processes that want more, and a process that needs less leaves the rest to others', () => {
    const sharing = new Sharing(100);
    for (let round = 0; round < 2; round += 1) for (const holder of ['a', 'b', 'c']) sharing.renew(holder, busy);
    expect(sharing.grants()).toEqual({ a: 33, b: 33, c: 34 });
    for (let round = 0; round < 2; round += 1) {
      sharing.renew('a', { background: 10 });
      for (const holder of ['b', 'c']) sharing.renew(holder, busy);
    }
    expect(sharing.grants()).toEqual({ a: 10, b: 45, c: 45 });
  });

  test('go to live calls first', () => {
    const sharing = new Sharing(50);
    sharing.renew('a', busy);
    sharing.renew('api', { live: 45 });
    for (let round = 0; round < 2; round += 1) for (const holder of ['a', 'b']) sharing.renew(holder, busy);
    expect(sharing.grants()).toEqual({ a: 2, api: 0, b: 3 });
    sharing.renew('api', { live: 400 });
    expect(sharing.renew('a', busy).background).toBe(0);
  });

  test('leave room for calls that come soon when no process wants more', () => {
    const sharing = new Sharing(100);
    for (let round = 0; round < 2; round += 1) {
      sharing.renew('a', { background: 10 });
      sharing.renew('b', { background: 20 });
    }
    expect(sharing.grants()).toEqual({ a: 45, b: 55 });
  });

  test('are not granted while another process still has the calls in flight', () => {
    const sharing = new Sharing(50);
    expect(sharing.renew('a', busy).background).toBe(50);
    expect(sharing.renew('b', busy).background).toBe(0);
    expect(sharing.renew('a', { ...busy, background: 50 }).background).toBe(25);
    expect(sharing.renew('b', busy).background).toBe(0);
    sharing.renew('a', { ...busy, background: 40 });
    expect(sharing.renew('b', busy).background).toBe(10);
  });

  test('are free again when a process has returned its own, or has not reported for ten seconds', () => {
    const sharing = new Sharing(50);
    for (const holder of ['a', 'b']) sharing.renew(holder, busy);
    sharing.renew('a', {});
    expect(sharing.renew('b', busy).background).toBe(50);
    sharing.renew('c', busy);
    sharing.nowMs += shareMs;
    expect(sharing.renew('c', busy).background).toBe(50);
    expect(Object.keys(sharing.limit.shares)).toEqual(['c']);
    sharing.nowMs -= 3_600_000;
    expect(sharing.renew('d', busy).background).toBe(50);
  });
});

describe('a limit of calls', () => {
  test('is the sum of what the processes learn', () => {
    const sharing = new Sharing(100);
    for (let round = 0; round < 2; round += 1) for (const holder of ['a', 'b']) sharing.renew(holder, busy);
    expect(sharing.renew('a', { ...busy, learned: 6.5 }).learned).toBe(106.5);
    expect(sharing.renew('b', { ...busy, learned: -30, isRejected: true, rejectedAgoMs: 10 })).toMatchObject({
      learned: 73,
      rejectedAgoMs: 10,
    });
    sharing.nowMs += 500;
    expect(sharing.renew('a', busy)).toMatchObject({ background: 36, rejectedAgoMs: 510 });
  });

  test('does not learn from a report about a share that its holder does not know', () => {
    const sharing = new Sharing(100);
    sharing.renew('a', busy);
    sharing.renew('a', busy);
    expect(sharing.renew('a', { ...busy, answered: 1, learned: 50 }).learned).toBe(100);
    expect(sharing.renew('b', { ...busy, answered: 7, learned: 50 }).learned).toBe(100);
    expect(sharing.renew('a', { ...busy, learned: -500 }).learned).toBe(1);
  });

  test('is never exceeded, and starves no process, whatever the processes report', () => {
    const report = fc.record({
      holder: fc.constantFrom('a', 'b', 'c', 'd', 'e'),
      live: fc.nat({ max: 20 }),
      needs: fc.nat({ max: 60 }),
      waitMs: fc.constantFrom(0, 200, 5_000, shareMs),
      learned: fc.integer({ min: -20, max: 20 }),
    });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 100 }), fc.array(report, { maxLength: 40 }), (learned, reports) => {
        const sharing = new Sharing(learned);
        const needed = new Map<string, { live: number; needs: number }>();
        const granted = (holder: string): number => sharing.limit.shares[holder]?.grant ?? 0;
        // A process has no more calls in flight than were granted.
        const demand = (holder: string, { live, needs }: { live: number; needs: number }): Partial<CallReport> => ({
          live,
          background: Math.min(needs, granted(holder)),
          wantsMore: needs > granted(holder),
        });
        for (const { holder, waitMs, learned: change, ...need } of reports) {
          sharing.nowMs += waitMs;
          const before = sharing.sum();
          const { background } = sharing.renew(holder, { ...demand(holder, need), learned: change });
          needed.set(holder, need);
          const most = background > 0 ? sharing.limit.learned : before + need.live;
          expect(sharing.sum()).toBeLessThanOrEqual(most);
        }
        // When nothing changes any more, each has an equal part of the limit, or all that it needs. One of its calls can
        // be lent to others, because what cannot be divided changes hands.
        for (const holder of needed.keys()) if (!(holder in sharing.limit.shares)) needed.delete(holder);
        for (let round = 0; round < 4; round += 1) {
          for (const [holder, need] of needed) sharing.renew(holder, demand(holder, need));
        }
        const live = [...needed.values()].reduce((sum, need) => sum + need.live, 0);
        const working = [...needed].filter(([, { needs }]) => needs > 0);
        const part = Math.max(0, Math.floor((sharing.limit.learned - live) / working.length));
        for (const [holder, { needs }] of working)
          expect(granted(holder)).toBeGreaterThanOrEqual(Math.min(part, needs) - 1);
        expect(sharing.sum()).toBeLessThanOrEqual(Math.max(sharing.limit.learned, live));
      }),
      { numRuns: 500 },
    );
  });
});
