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

test('a line that waits for a call keeps no memory from those that call', async () => {
  const { lineOf, inFlight } = setUp();
  const first = lineOf();
  await first.room.acquire(5_000);
  const waiting = lineOf().room.acquire(50 * mebibyte);
  await Promise.resolve();
  expect(inFlight()).toEqual({ calls: 1, bytes: 5_000 });
  first.lease.charge(50 * mebibyte); // its answer
  first.room.release(1, 5_000);
  first.lease.release();
  expect(await waiting).toBe(true);
});

test('a line that is stopped while it waits for memory holds no call', async () => {
  const { lineOf, inFlight } = setUp(2);
  await lineOf().room.acquire(50 * mebibyte);
  const stop = new AbortController();
  const acquiring = lineOf().room.acquire(20 * mebibyte, { signal: stop.signal });
  await Promise.resolve();
  stop.abort();
  expect(await acquiring).toBe(false);
  expect(inFlight()).toEqual({ calls: 1, bytes: 50 * mebibyte });
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
