import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createFairPool, type FairPool } from './fair-pool.ts';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const groups = ['a', 'b', 'c'];

/** Takers of a pool, and the groups that got a unit, in order. */
function createTakers(pool: FairPool) {
  const served: string[] = [];
  const waiting: { group: string; leave: AbortController }[] = [];
  return {
    served,
    waiting,
    take: (group: string): void => {
      const taker = { group, leave: new AbortController() };
      waiting.push(taker);
      const leftOrServed = (isServed: boolean): void => {
        waiting.splice(waiting.indexOf(taker), 1);
        if (isServed) served.push(group);
      };
      pool.take(group, taker.leave.signal).then(
        () => leftOrServed(true),
        () => leftOrServed(false),
      );
    },
  };
}

describe('a pool with a share of half', () => {
  const step = fc.tuple(fc.constantFrom('take', 'give', 'leave'), fc.constantFrom(...groups));
  const steps = fc.array(step, { maxLength: 60 });

  test('keeps its limits, lets no unit lie idle that a waiter may take, and serves all who stay', async () => {
    await fc.assert(
      fc.asyncProperty(steps, fc.integer({ min: 1, max: 6 }), async (all, units) => {
        const ownMax = Math.ceil(units / 2);
        const pool = createFairPool({ units, mayTake: (held) => held < ownMax });
        const { take, waiting } = createTakers(pool);
        for (const [what, group] of all) {
          if (what === 'take') take(group);
          else if (what === 'give') pool.give(group);
          else waiting.find((taker) => taker.group === group)?.leave.abort(new Error('left'));
          await turn();
          const held = groups.map((each) => pool.held(each));
          expect(Math.max(...held)).toBeLessThanOrEqual(ownMax);
          expect(held.reduce((sum, each) => sum + each, 0)).toBe(pool.held());
          expect(pool.held()).toBeLessThanOrEqual(units);
          expect(pool.waiting()).toBe(waiting.length);
          const canTake = waiting.some((taker) => pool.held(taker.group) < ownMax);
          expect(canTake && pool.held() < units).toBe(false);
        }
        while (pool.held() > 0) {
          for (const group of groups) pool.give(group);
          await turn();
        }
        expect(waiting).toEqual([]);
      }),
    );
  });

  test('serves no group twice while one waits that holds nothing', async () => {
    await fc.assert(
      fc.asyncProperty(steps, fc.integer({ min: 1, max: 6 }), async (all, units) => {
        const pool = createFairPool({ units, mayTake: (held) => held < Math.ceil(units / 2) });
        const { take, served } = createTakers(pool);
        for (const [what, group] of all) {
          if (what === 'take') take(group);
          else pool.give(group);
        }
        await turn();
        take('new');
        const before = served.length;
        for (let left = 200; left > 0 && !served.includes('new'); left -= 1) {
          pool.give(groups[left % groups.length] as string);
          await turn();
        }
        const others = served.slice(before, served.indexOf('new'));
        expect(new Set(others).size).toBe(others.length);
      }),
    );
  });

  test('rejects a taker that leaves, and those for whom there is no place to wait', async () => {
    const refusal = (own: number): Error => new Error(`${own} wait`);
    const pool = createFairPool({ units: 1, mayTake: () => true, waitingMax: { ofGroup: 1, ofAll: 2, refusal } });
    expect(pool.tryTake('a')).toBe(true);
    const leave = new AbortController();
    const leaving = pool.take('a', leave.signal);
    await expect(pool.take('a')).rejects.toThrow('1 wait');
    const second = pool.take('b');
    await expect(pool.take('c')).rejects.toThrow('0 wait');
    leave.abort(new Error('left'));
    await expect(leaving).rejects.toThrow('left');
    await expect(pool.take('a', leave.signal)).rejects.toThrow('left');
    pool.give('a');
    await second;
    expect([pool.held(), pool.held('b'), pool.waiting()]).toEqual([1, 1, 0]);
  });
});

test('by default a single group has three quarters, and the next one three quarters of the rest', () => {
  const pool = createFairPool({ units: 100 });
  const takeAll = (group: string): number => {
    while (pool.tryTake(group));
    return pool.held(group);
  };
  expect(['a', 'b', 'a', 'c'].map(takeAll)).toEqual([75, 19, 75, 5]);
  pool.give('nobody');
  expect(pool.held()).toBe(99);
});
