import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createPermitPool } from './permit-pool.ts';

/** Whether a promise has resolved, once everything that is due has run. */
async function admitted(permit: boolean | Promise<boolean>): Promise<boolean> {
  let done = false;
  void Promise.resolve(permit).then(() => (done = true));
  await new Promise((resolve) => setImmediate(resolve));
  return done;
}

test('permits are granted up to the limit, and one more for each that is released', async () => {
  const permits = createPermitPool({ callsMax: 2, bytesMax: 1_000 });
  await permits.acquire(10);
  await permits.acquire(10);
  const third = permits.acquire(10);
  expect(await admitted(third)).toBe(false);
  expect(permits.inFlight()).toEqual({ calls: 2, bytes: 20, waiting: 1 });
  permits.release(1, 10);
  expect(await admitted(third)).toBe(true);
  expect(permits.inFlight()).toEqual({ calls: 2, bytes: 20, waiting: 0 });
});

test('bytes stay counted until they are released, even when their call is over', async () => {
  const permits = createPermitPool({ callsMax: 10, bytesMax: 100 });
  await permits.acquire(100);
  const next = permits.acquire(1);
  permits.release(1, 0);
  expect(await admitted(next)).toBe(false);
  permits.release(0, 100);
  expect(await admitted(next)).toBe(true);
});

test('a result that is larger than its line counts with its own size', async () => {
  const permits = createPermitPool({ callsMax: 10, bytesMax: 100 });
  await permits.acquire(10);
  permits.release(1, 10 - 95); // The line itself is released, and its result is counted.
  expect(permits.inFlight()).toEqual({ calls: 0, bytes: 95, waiting: 0 });
  expect(await admitted(permits.acquire(10))).toBe(false);
  permits.release(0, 95);
  expect(permits.inFlight()).toEqual({ calls: 1, bytes: 10, waiting: 0 });
});

test('a line larger than all the bytes allowed runs when nothing else does, and blocks everything else meanwhile', async () => {
  const permits = createPermitPool({ callsMax: 10, bytesMax: 100 });
  await permits.acquire(1);
  const huge = permits.acquire(500);
  const small = permits.acquire(1);
  expect(await admitted(huge)).toBe(false);
  // The small line waits behind it too. Otherwise the huge one would wait forever.
  expect(await admitted(small)).toBe(false);
  permits.release(1, 1);
  expect(await admitted(huge)).toBe(true);
  expect(await admitted(small)).toBe(false);
  permits.release(1, 500);
  expect(await admitted(small)).toBe(true);
});

test('waiters are served in order, as many at once as fit', async () => {
  const permits = createPermitPool({ callsMax: 3, bytesMax: 100 });
  await permits.acquire(90);
  const order: number[] = [];
  const waiters = [30, 30, 30, 30].map((size, index) =>
    Promise.resolve(permits.acquire(size)).then(() => order.push(index)),
  );
  permits.release(1, 90);
  await Promise.all(waiters.slice(0, 3));
  expect(order).toEqual([0, 1, 2]);
  expect(permits.inFlight()).toEqual({ calls: 3, bytes: 90, waiting: 1 });
});

test('whatever is acquired and released, the limits hold, the order is kept, and everyone is served', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.integer({ min: 0, max: 150 }), { maxLength: 40 }),
      fc.integer({ min: 1, max: 5 }),
      fc.infiniteStream(fc.nat()),
      async (sizes, callsMax, choices) => {
        const permits = createPermitPool({ callsMax, bytesMax: 100 });
        const running: number[] = [];
        const started: number[] = [];
        sizes.forEach((size, index) => {
          void Promise.resolve(permits.acquire(size)).then(() => {
            started.push(index);
            running.push(size);
          });
        });
        for (;;) {
          await new Promise((resolve) => setImmediate(resolve));
          const { calls, bytes, waiting } = permits.inFlight();
          expect(calls).toBe(running.length);
          expect(bytes).toBe(running.reduce((sum, size) => sum + size, 0));
          expect(calls).toBeLessThanOrEqual(callsMax);
          expect(bytes <= 100 || calls === 1).toBe(true);
          expect(calls > 0 || waiting === 0).toBe(true); // No line waits while everything is free.
          if (calls === 0) break;
          const [size] = running.splice((choices.next().value ?? 0) % running.length, 1);
          permits.release(1, size ?? 0);
        }
        expect(started).toEqual(sizes.map((_, index) => index));
        expect(permits.inFlight()).toEqual({ calls: 0, bytes: 0, waiting: 0 });
      },
    ),
    { numRuns: 50 },
  );
});

test('one group cannot have all permits, and a released one goes to another group', async () => {
  const permits = createPermitPool({ callsMax: 16, bytesMax: 1_000 });
  const enter = async (group: string, count: number): Promise<number> => {
    const all = await Promise.all(
      Array.from({ length: count }, () => admitted(permits.of('ws', 'place', group).acquire(1))),
    );
    return all.filter(Boolean).length;
  };
  // None of these calls has an answer yet, whichever batch they belong to.
  expect(await enter('a', 20)).toBe(2);
  expect(await enter('b', 20)).toBe(0);
  permits.of('ws', 'place', 'a').release(1, 1, true);
  expect(permits.inFlight()).toMatchObject({ calls: 3 });
  expect(await admitted(permits.of('ws', 'elsewhere', 'b').acquire(1))).toBe(true);
});

test('a workspace without a call may begin one when others have all the permits, but not a second one', async () => {
  const permits = createPermitPool({ callsMax: 2, bytesMax: 100 });
  expect(await admitted(permits.of('ws', 'a').acquire(1))).toBe(true);
  expect(await admitted(permits.of('ws', 'b').acquire(1))).toBe(true);
  expect(await admitted(permits.of('ws', 'c').acquire(1))).toBe(false);
  const other = permits.of('another', 'a');
  expect(await admitted(other.acquire(1))).toBe(true);
  const second = other.acquire(1);
  expect(await admitted(second)).toBe(false);
  other.release(1, 1, true);
  expect(await admitted(second)).toBe(true);
});

test('groups take turns, and the lines of a group keep their order', async () => {
  const permits = createPermitPool({ callsMax: 1, bytesMax: 100 });
  await permits.of('ws').acquire(1);
  const order: string[] = [];
  const all = ['a1', 'a2', 'a3', 'b1', 'c1', 'c2'].map((name) =>
    Promise.resolve(permits.of('ws', name.slice(0, 1)).acquire(1)).then(() => {
      order.push(name);
      permits.of('ws', name.slice(0, 1)).release(1, 1);
    }),
  );
  permits.of('ws').release(1, 1);
  await Promise.all(all);
  expect(order).toEqual(['a1', 'b1', 'c1', 'a2', 'c2', 'a3']);
});

test('whatever groups the lines belong to, all are served, and no group has more than seven eighths of the calls', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.record({ group: fc.constantFrom('a', 'b', 'c'), size: fc.integer({ min: 0, max: 40 }) }), {
        maxLength: 40,
      }),
      fc.integer({ min: 2, max: 40 }),
      fc.infiniteStream(fc.nat()),
      async (lines, callsMax, choices) => {
        const permits = createPermitPool({ callsMax, bytesMax: 1_000 });
        const running: typeof lines = [];
        let started = 0;
        for (const line of lines) {
          void Promise.resolve(permits.of('ws', line.group).acquire(line.size)).then(() => {
            started += 1;
            running.push(line);
          });
        }
        for (;;) {
          await new Promise((resolve) => setImmediate(resolve));
          const { calls, bytes, waiting } = permits.inFlight();
          expect(calls).toBe(running.length);
          expect(bytes).toBe(running.reduce((sum, { size }) => sum + size, 0));
          expect(calls).toBeLessThanOrEqual(callsMax);
          expect(calls > 0 || waiting === 0).toBe(true);
          const groups = new Set(running.map(({ group }) => group));
          expect(groups.size > 1 || calls <= Math.ceil((callsMax * 7) / 8)).toBe(true);
          if (calls === 0) break;
          const [line] = running.splice((choices.next().value ?? 0) % running.length, 1);
          if (line) permits.of('ws', line.group).release(1, line.size);
        }
        expect(started).toBe(lines.length);
        expect(permits.inFlight()).toEqual({ calls: 0, bytes: 0, waiting: 0 });
      },
    ),
    { numRuns: 50 },
  );
});

test('a resuming line goes before those that have not begun, but these still get their turn', async () => {
  const permits = createPermitPool({ callsMax: 1, bytesMax: 100 });
  await permits.acquire(1);
  const order: string[] = [];
  const enter = (name: string, isResuming: boolean) =>
    Promise.resolve(permits.acquire(1, { isResuming })).then(() => {
      order.push(name);
      permits.release(1, 1);
    });
  const all = [
    ...['b1', 'b2', 'b3'].map((name) => enter(name, false)),
    ...['r1', 'r2', 'r3', 'r4', 'r5', 'r6', 'r7'].map((name) => enter(name, true)),
  ];
  permits.release(1, 1);
  await Promise.all(all);
  expect(order).toEqual(['r1', 'r2', 'r3', 'b1', 'r4', 'r5', 'r6', 'b2', 'r7', 'b3']);
});

test('a waiter that gives up holds nothing and lets the next ones proceed', async () => {
  const permits = createPermitPool({ callsMax: 10, bytesMax: 100 });
  await permits.acquire(10);
  const left = new AbortController();
  const huge = permits.acquire(500, { signal: left.signal });
  const small = permits.acquire(5);
  expect(await admitted(small)).toBe(false);
  left.abort();
  expect(await huge).toBe(false);
  expect(await small).toBe(true);
  expect(permits.inFlight()).toEqual({ calls: 2, bytes: 15, waiting: 0 });
  expect(await permits.acquire(5, { signal: left.signal })).toBe(false);
  expect(permits.inFlight()).toEqual({ calls: 2, bytes: 15, waiting: 0 });
});
