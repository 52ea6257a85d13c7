import { expect, test } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { withLineMemory } from './with-line-memory.ts';
import { createPermitPool } from './permit-pool.ts';

const mebibyte = 1_048_576;

function setUp(callsMax = 1) {
  const memory = createMemoryBudget(80 * mebibyte);
  const permits = createPermitPool({ callsMax, bytesMax: Number.POSITIVE_INFINITY });
  const lineOf = (workspace = 'a') => {
    const lease = memory.open(workspace);
    return { lease, permits: withLineMemory(permits, lease, 1_000) };
  };
  const inFlight = () => ({ calls: permits.inFlight().calls, bytes: memory.stats().heldBytes });
  return { memory, permits, lineOf, inFlight };
}

test('a line that calls holds its memory and a permit, and afterwards only what its result needs', async () => {
  const { lineOf, inFlight } = setUp();
  const { lease, permits } = lineOf();
  expect(await permits.acquire(5_000)).toBe(true);
  expect(inFlight()).toEqual({ calls: 1, bytes: 5_000 });
  lease.charge(3_000);
  expect(inFlight()).toEqual({ calls: 1, bytes: 5_000 });
  lease.charge(3_000); // The answer is larger than expected.
  expect(inFlight()).toEqual({ calls: 1, bytes: 7_000 });
  permits.release(1, 5_000 - 400); // Its result is smaller.
  expect(inFlight()).toEqual({ calls: 0, bytes: 400 });
  permits.release(0, 400);
  expect(inFlight()).toEqual({ calls: 0, bytes: 0 });
});

test('a line that waits for a permit takes no memory from lines that call', async () => {
  const { lineOf, inFlight } = setUp();
  const first = lineOf();
  await first.permits.acquire(5_000);
  const waiting = lineOf().permits.acquire(50 * mebibyte);
  await Promise.resolve();
  expect(inFlight()).toEqual({ calls: 1, bytes: 5_000 });
  first.lease.charge(50 * mebibyte); // The answer of the first line.
  first.permits.release(1, 5_000);
  first.lease.release();
  expect(await waiting).toBe(true);
});

test('a line that is stopped while it waits for memory holds no permit', async () => {
  const { lineOf, inFlight } = setUp(2);
  await lineOf().permits.acquire(50 * mebibyte);
  const stop = new AbortController();
  const acquiring = lineOf().permits.acquire(20 * mebibyte, { signal: stop.signal });
  await Promise.resolve();
  stop.abort();
  expect(await acquiring).toBe(false);
  expect(inFlight()).toEqual({ calls: 1, bytes: 50 * mebibyte });
});

test('a line that is stopped while it waits for a permit holds nothing', async () => {
  const { permits, lineOf, inFlight } = setUp();
  await permits.acquire(0);
  const stop = new AbortController();
  const acquiring = lineOf().permits.acquire(5_000, { signal: stop.signal });
  await Promise.resolve();
  stop.abort();
  expect(await acquiring).toBe(false);
  expect(inFlight()).toEqual({ calls: 1, bytes: 0 });
});
