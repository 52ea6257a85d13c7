import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { GatewayError } from '../errors.ts';
import { createMemoryBudget, type MemoryBudget } from './memory-budget.ts';

const mebibyte = 1_048_576;
const never = new AbortController().signal;
const overloaded: unknown = expect.objectContaining({ code: 'server_overloaded', retryAfterMs: 1_000 });

let budget: MemoryBudget;

beforeEach(() => {
  vi.useFakeTimers();
  budget = createMemoryBudget(80 * mebibyte, { graceMs: 1_000 });
});
afterEach(() => {
  vi.useRealTimers();
});

const held = (): number => budget.stats().heldBytes / mebibyte;

test('charged bytes count until they are given back, and a released lease counts nothing', () => {
  const lease = budget.open('a');
  lease.charge(3 * mebibyte);
  lease.charge(2 * mebibyte);
  lease.give(mebibyte);
  expect(held()).toBe(4);
  lease.release();
  expect(held()).toBe(0);
  lease.charge(mebibyte);
  lease.give(5 * mebibyte);
  expect(held()).toBe(0);
});

test('one workspace gets at most three quarters, and there is room for another one', () => {
  const [large, more, other] = [budget.open('a'), budget.open('a'), budget.open('b')];
  large.charge(60 * mebibyte);
  expect(() => more.charge(mebibyte)).toThrow(overloaded);
  other.charge(10 * mebibyte);
  expect(held()).toBe(70);
  expect(other.tryCharge(10 * mebibyte)).toBe(false);
});

test('small calls find room when large ones do not, even those of the same workspace', () => {
  budget.open('a').charge(60 * mebibyte);
  const small = budget.open('a');
  small.charge(60_000);
  expect(() => small.charge(60_000)).toThrow(overloaded); // it is not small any more
  expect(budget.open('b').tryCharge(60_000)).toBe(true);
});

test('small calls of one workspace leave room for others as well', () => {
  const leases = Array.from({ length: 2_000 }, () => budget.open('a'));
  const taken = leases.filter((lease) => lease.tryCharge(65_536)).length;
  expect(taken).toBe(70 * 16);
  expect(budget.open('b').tryCharge(65_536)).toBe(true);
});

test('waiters get room when it becomes free, and the workspaces take turns', async () => {
  const blocker = budget.open('a');
  blocker.charge(59 * mebibyte);
  const order: string[] = [];
  const queue = async (name: string, workspace: string): Promise<void> => {
    await budget.open(workspace).chargeWhenFree(20 * mebibyte, never);
    order.push(name);
  };
  const waits = [queue('a1', 'a'), queue('a2', 'a'), queue('b1', 'b')];
  await Promise.resolve();
  expect(budget.stats().waiting).toBe(3);
  blocker.release();
  await Promise.all(waits);
  expect(order).toEqual(['a1', 'b1', 'a2']);
});

test('a waiter that waits too long is told to try again, and one whose call is over gets its abort reason', async () => {
  budget.open('a').charge(60 * mebibyte);
  budget.open('b').charge(10 * mebibyte);
  // The first waiter would get its memory after the grace time. This is the second one.
  const first = budget.open('a').chargeWhenFree(60 * mebibyte, never);
  const late = budget.open('a', 500).chargeWhenFree(mebibyte, never);
  const controller = new AbortController();
  const gone = budget.open('a', 500).chargeWhenFree(mebibyte, controller.signal);
  controller.abort(new GatewayError('unavailable', 'call_aborted', 'The call is over.'));
  await expect(gone).rejects.toThrow('The call is over.');
  const refused = late.catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(500);
  expect(await refused).toEqual(overloaded);
  expect(budget.stats().waiting).toBe(1);
  void first;
});

test('small leases work beside the one that has more than the budget', async () => {
  budget.open('a').charge(55 * mebibyte);
  const oldest = budget.open('a');
  const waiting = oldest.chargeWhenFree(60 * mebibyte, never);
  await vi.advanceTimersByTimeAsync(1_000);
  await waiting;
  expect(held()).toBeGreaterThan(80);
  for (let call = 0; call < 20; call += 1) budget.open('b').charge(10_000);
});

test('a lease that is released while it waits does not use up the exception for later ones', async () => {
  budget.open('a').charge(55 * mebibyte);
  const gone = budget.open('a');
  const first = gone.chargeWhenFree(60 * mebibyte, never);
  gone.release();
  const second = budget.open('a').chargeWhenFree(60 * mebibyte, never);
  await vi.advanceTimersByTimeAsync(2_000);
  await Promise.all([first, second]);
  expect(held()).toBe(115);
});

test('a reservation is used up before more is charged', async () => {
  const lease = budget.open('a');
  expect(await lease.reserve(20 * mebibyte, never)).toBe(true);
  lease.charge(15 * mebibyte);
  expect(held()).toBe(20);
  lease.charge(15 * mebibyte);
  expect(held()).toBe(30);
  lease.give(30 * mebibyte);
  expect(held()).toBe(20);
  lease.become(5 * mebibyte);
  expect(held()).toBe(5);
});

test('an aborted reservation holds nothing', async () => {
  budget.open('a').charge(60 * mebibyte);
  const controller = new AbortController();
  const reserving = budget.open('a').reserve(30 * mebibyte, controller.signal);
  controller.abort();
  expect(await reserving).toBe(false);
  expect(budget.stats()).toMatchObject({ waiting: 0, heldBytes: 60 * mebibyte });
});

test('answers that each hold a part and wait for more are finished, one beyond the budget at a time', async () => {
  const answers = Array.from({ length: 6 }, () => budget.open('a'));
  for (const answer of answers) answer.charge(10 * mebibyte);
  let most = 0;
  const ends = answers.map(async (answer) => {
    for (let grown = 0; grown < 4; grown += 1) {
      await answer.chargeWhenFree(10 * mebibyte, never);
      most = Math.max(most, held());
    }
    answer.release();
  });
  await vi.advanceTimersByTimeAsync(10_000);
  await Promise.all(ends);
  expect(held()).toBe(0);
  expect(most).toBeLessThanOrEqual(80 + 60);
});

test('a large reservation is not blocked for ever by small ones that come and go', async () => {
  let isThere = false;
  budget.open('a').charge(40 * mebibyte);
  void Promise.resolve(budget.open('a').reserve(50 * mebibyte, never)).then(() => (isThere = true));
  await vi.advanceTimersByTimeAsync(999);
  expect(isThere).toBe(false);
  await vi.advanceTimersByTimeAsync(1);
  expect(isThere).toBe(true);
});
