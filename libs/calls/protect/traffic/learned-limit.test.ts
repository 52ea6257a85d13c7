import { describe, expect, test } from 'vitest';
import { renewShare, type CallLimit } from '#libs/limits/call-limit.ts';
import { LearnedLimit } from './learned-limit.ts';

type Provider = { allowed: number; latencyMs: number; rejectsAfterMs: number };

/** A process with lines to call, and with live calls that begin one after the other. */
type Process = { limit: LearnedLimit; waiting: number; liveEveryMs?: number };

/**
 * Calls the lines of some processes in virtual time: a provider with `allowed` calls at a time answers each after its
 * latency, and rejects what is beyond. A rejected line is called again after a second. `everyTick` runs every 10 ms.
 */
function simulate(processes: readonly Process[], provider: Provider, everyTick: (nowMs: number) => void = () => {}) {
  const tickMs = 10;
  const lines = processes.reduce((sum, { waiting }) => sum + waiting, 0);
  let nowMs = 0;
  let answered = 0;
  let running = 0;
  const calls = { line: 0, live: 0 };
  const rejected = { line: 0, live: 0 };
  const due = new Map<number, (() => void)[]>();
  const at = (ms: number, what: () => void): void => {
    const tick = Math.ceil(ms / tickMs);
    due.set(tick, [...(due.get(tick) ?? []), what]);
  };
  const call = (kind: 'line' | 'live', onEnd: (how: 'answered' | 'rejected') => void): void => {
    calls[kind] += 1;
    if (running < provider.allowed) {
      running += 1;
      at(nowMs + provider.latencyMs, () => {
        running -= 1;
        onEnd('answered');
      });
    } else {
      rejected[kind] += 1;
      at(nowMs + provider.rejectsAfterMs, () => onEnd('rejected'));
    }
  };
  const callLine = (process: Process): void => {
    const others = process.limit.begin();
    process.waiting -= 1;
    call('line', (how) => {
      process.limit.end(how, nowMs, others);
      if (how === 'answered') answered += 1;
      else at(nowMs + 1_000, () => void (process.waiting += 1));
    });
  };
  const callLive = ({ limit }: Process): void => {
    limit.beginLive();
    call('live', (how) => limit.end(how, nowMs));
  };
  const isOver = (): boolean => answered >= lines;
  while (!isOver()) {
    for (const what of due.get(nowMs / tickMs) ?? []) what();
    due.delete(nowMs / tickMs);
    everyTick(nowMs);
    for (const process of processes) {
      if (nowMs % 250 === 0) process.limit.grow(nowMs);
      if (process.liveEveryMs !== undefined && nowMs % process.liveEveryMs === 0) callLive(process);
      while (process.waiting > 0 && process.limit.mayBegin(nowMs)) callLine(process);
    }
    nowMs += tickMs;
  }
  const idealMs = Math.ceil(lines / provider.allowed) * provider.latencyMs;
  return {
    ofIdeal: idealMs / nowMs,
    rejectedShare: rejected.line / calls.line,
    liveRejectedShare: rejected.live / calls.live,
  };
}

const alone = (limit: LearnedLimit, waiting: number): Process[] => [{ limit, waiting }];

/** A limit that processes share. Each renews its share once per second, at another time than the others. */
class Sharing {
  limit: CallLimit = { learned: 32, isAnswered: false, rejectedAtMs: null, burst: null, shares: {} };

  process(waiting: number): Process {
    const limit = new LearnedLimit();
    limit.share();
    return { limit, waiting };
  }

  renew(holder: string, { limit, waiting }: Process, nowMs: number): void {
    const renewed = renewShare(this.limit, holder, limit.report(waiting > 0, nowMs), nowMs);
    this.limit = renewed.limit;
    limit.take(renewed.grant, nowMs);
  }

  run(processes: readonly Process[], provider: Provider): ReturnType<typeof simulate> {
    return simulate(processes, provider, (nowMs) => {
      for (const [index, process] of processes.entries()) {
        const isDue = nowMs === 0 || (nowMs + index * 130) % 1_000 === 0;
        if (isDue) this.renew(`process_${index}`, process, nowMs);
      }
    });
  }
}

describe('the learned limit, in virtual time', () => {
  test('reaches 2,000 calls of ten seconds cold, and uses them when it is warm', () => {
    const provider = { allowed: 2_000, latencyMs: 10_000, rejectsAfterMs: 50 };
    const limit = new LearnedLimit();
    const cold = simulate(alone(limit, 20_000), provider);
    const warm = simulate(alone(limit, 20_000), provider);
    expect(cold.ofIdeal).toBeGreaterThanOrEqual(0.85);
    expect(cold.rejectedShare).toBeLessThan(0.02);
    expect(warm.ofIdeal).toBeGreaterThanOrEqual(0.92);
    expect(warm.rejectedShare).toBeLessThan(0.02);
  });

  test('stays at 50 calls of ten seconds', () => {
    const found = simulate(alone(new LearnedLimit(), 2_000), { allowed: 50, latencyMs: 10_000, rejectsAfterMs: 50 });
    expect(found.ofIdeal).toBeGreaterThanOrEqual(0.95);
    expect(found.rejectedShare).toBeLessThan(0.02);
  });

  test('stays at 200 calls of a second', () => {
    const found = simulate(alone(new LearnedLimit(), 20_000), { allowed: 200, latencyMs: 1_000, rejectsAfterMs: 50 });
    expect(found.ofIdeal).toBeGreaterThanOrEqual(0.9);
    expect(found.rejectedShare).toBeLessThan(0.02);
  });

  test('a provider that never answers gets no more than a few hundred calls', () => {
    const limit = new LearnedLimit();
    for (let nowMs = 0; nowMs < 600_000; nowMs += 250) {
      limit.grow(nowMs);
      while (limit.mayBegin(nowMs)) limit.begin();
    }
    expect(limit.inFlight).toBeLessThanOrEqual(437);
  });

  test('a burst of rejections takes half of the limit at most, so that one bad second does not stop a batch', () => {
    const limit = new LearnedLimit();
    const calls = Array.from({ length: 32 }, () => limit.begin());
    for (const others of calls) limit.end('rejected', others, others);
    expect(limit.current).toBe(16);
  });

  test('it does not grow while it is not used', () => {
    const limit = new LearnedLimit();
    limit.end('answered', 0, limit.begin());
    for (let nowMs = 0; nowMs < 60_000; nowMs += 250) limit.grow(nowMs);
    expect(limit.current).toBe(32);
  });
});

describe('a shared limit, in virtual time', () => {
  const fifty = { allowed: 50, latencyMs: 10_000, rejectsAfterMs: 50 };

  test.each([2, 4])('%i workers together stay at 50 calls of ten seconds', (workers) => {
    const sharing = new Sharing();
    const processes = Array.from({ length: workers }, () => sharing.process(4_000 / workers));
    const found = sharing.run(processes, fifty);
    expect(found.ofIdeal).toBeGreaterThanOrEqual(0.95);
    expect(found.rejectedShare).toBeLessThan(0.02);
  });

  test('three workers reach 2,000 calls of ten seconds, and start there with the next batch', () => {
    const provider = { allowed: 2_000, latencyMs: 10_000, rejectsAfterMs: 50 };
    const sharing = new Sharing();
    const run = () => {
      sharing.limit = { ...sharing.limit, shares: {} };
      return sharing.run(
        [8_000, 6_000, 6_000].map((lines) => sharing.process(lines)),
        provider,
      );
    };
    const cold = run();
    const warm = run();
    expect(cold.ofIdeal).toBeGreaterThanOrEqual(0.85);
    expect(cold.rejectedShare).toBeLessThan(0.02);
    expect(warm.ofIdeal).toBeGreaterThanOrEqual(0.92);
    expect(warm.rejectedShare).toBeLessThan(0.02);
  });

  test('workers leave room for the live calls of an API', () => {
    const sharing = new Sharing();
    const api = { ...sharing.process(0), liveEveryMs: 500 };
    const found = sharing.run([sharing.process(2_000), sharing.process(2_000), api], fifty);
    expect(found.liveRejectedShare).toBeLessThan(0.02);
  });

  test('a second worker soon has half of the limit', () => {
    const sharing = new Sharing();
    sharing.limit = { ...sharing.limit, learned: 50 };
    const first = new LearnedLimit();
    const second = new LearnedLimit();
    for (const limit of [first, second]) limit.share();
    const renew = (holder: string, limit: LearnedLimit): void => sharing.renew(holder, { limit, waiting: 100 }, 0);
    renew('first', first);
    const calls: number[] = [];
    while (first.mayBegin(0)) calls.push(first.begin());
    expect(calls).toHaveLength(50);
    // One call is possible whatever others have in flight.
    renew('second', second);
    expect(second.mayBegin(0)).toBe(true);
    const own = [second.begin()];
    expect(second.mayBegin(0)).toBe(false);
    renew('first', first);
    for (const others of calls.splice(25)) first.end('answered', 0, others);
    expect(first.mayBegin(0)).toBe(false);
    renew('first', first);
    renew('first', first);
    renew('second', second);
    while (second.mayBegin(0)) own.push(second.begin());
    expect(own).toHaveLength(25);
  });

  test('the first call of a process that has no share is tried once per second while it is rejected', () => {
    const limit = new LearnedLimit();
    limit.share();
    expect(limit.mayBegin(0)).toBe(true);
    limit.end('rejected', 0, limit.begin());
    expect(limit.mayBegin(999)).toBe(false);
    expect(limit.mayBegin(1_000)).toBe(true);
  });

  test('a share holds while the database is unavailable, and then shrinks to what is used', () => {
    const sharing = new Sharing();
    const limit = new LearnedLimit();
    limit.share();
    sharing.renew('worker', { limit, waiting: 100 }, 0);
    while (limit.mayBegin(0)) limit.begin();
    expect(limit.inFlight).toBe(32);
    for (let call = 0; call < 20; call += 1) limit.end('answered', 0, 0);
    for (let nowMs = 3_250; nowMs <= 10_000; nowMs += 250) limit.grow(nowMs);
    expect(limit.current).toBe(32);
    for (let nowMs = 10_250; nowMs <= 60_000; nowMs += 250) limit.grow(nowMs);
    expect(limit.current).toBe(12);
    sharing.renew('worker', { limit, waiting: 100 }, 60_000);
    expect(limit.current).toBeGreaterThan(20);
  });
});
