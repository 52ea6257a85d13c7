import { expect, test } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/memory-budget.ts';
import { withLineMemory } from './with-line-memory.ts';
import { createSlots } from './slots.ts';

const mebibyte = 1_048_576;

function setUp(callsMax = 1) {
  const memory = createMemoryBudget(80 * mebibyte);
  const slots = createSlots({ callsMax, bytesMax: Number.POSITIVE_INFINITY });
  const lineOf = (workspace = 'a') => {
    const lease = memory.open(workspace);
    return { lease, room: withLineMemory(slots, lease, 1_000) };
  };
  const inFlight = () => ({ calls: slots.inFlight().calls, bytes: memory.stats().heldBytes });
  return { memory, slots, lineOf, inFlight };
}

test('a line that calls holds its memory and a call, and after it what is left of both', async () => {
  const { lineOf, inFlight } = setUp();
  const { lease, room } = lineOf();
  expect(await room.acquire(5_000)).toBe(true);
  expect(inFlight()).toEqual({ calls: 1, bytes: 5_000 });
  lease.charge(3_000);
  expect(inFlight()).toEqual({ calls: 1, bytes: 5_000 });
  lease.charge(3_000); // the answer is larger than was expected
  expect(inFlight()).toEqual({ calls: 1, bytes: 7_000 });
  room.release(1, 5_000 - 400); // and its result is smaller
  expect(inFlight()).toEqual({ calls: 0, bytes: 400 });
  room.release(0, 400);
  expect(inFlight()).toEqual({ calls: 0, bytes: 0 });
});

test('a line that waits for memory keeps no call from others', async () => {
  const { lineOf, inFlight } = setUp();
  const first = lineOf('a');
  await first.room.acquire(50 * mebibyte);
  first.room.release(1, 0);
  const waiting = lineOf('a').room.acquire(20 * mebibyte);
  expect(await lineOf('b').room.acquire(mebibyte)).toBe(true);
  expect(inFlight().calls).toBe(1);
  first.lease.release();
  await Promise.resolve();
  void waiting;
});

test('a line that is stopped while it waits for a call holds nothing', async () => {
  const { slots, lineOf, inFlight } = setUp();
  await slots.acquire(0);
  const stop = new AbortController();
  const acquiring = lineOf().room.acquire(5_000, { signal: stop.signal });
  await Promise.resolve();
  stop.abort();
  expect(await acquiring).toBe(false);
  expect(inFlight()).toEqual({ calls: 1, bytes: 0 });
});
