import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createSlots } from './slots.ts';

/** Whether a promise has resolved, after everything that is due has run. */
async function admitted(promise: Promise<boolean>): Promise<boolean> {
  let done = false;
  void promise.then(() => (done = true));
  await new Promise((resolve) => setImmediate(resolve));
  return done;
}

test('calls are admitted up to the number allowed, and one more for each that is given back', async () => {
  const slots = createSlots({ callsMax: 2, bytesMax: 1_000 });
  await slots.acquire(10);
  await slots.acquire(10);
  const third = slots.acquire(10);
  expect(await admitted(third)).toBe(false);
  expect(slots.inFlight()).toEqual({ calls: 2, bytes: 20, waiting: 1 });
  slots.release(1, 10);
  expect(await admitted(third)).toBe(true);
  expect(slots.inFlight()).toEqual({ calls: 2, bytes: 20, waiting: 0 });
});

test('bytes stay counted until they are given back, also when their call is over', async () => {
  const slots = createSlots({ callsMax: 10, bytesMax: 100 });
  await slots.acquire(100);
  const next = slots.acquire(1);
  slots.release(1, 0);
  expect(await admitted(next)).toBe(false);
  slots.release(0, 100);
  expect(await admitted(next)).toBe(true);
});

test('a result larger than its line counts for what it is', async () => {
  const slots = createSlots({ callsMax: 10, bytesMax: 100 });
  await slots.acquire(10);
  slots.release(1, 10 - 95); // the line is gone, its result is here
  expect(slots.inFlight()).toEqual({ calls: 0, bytes: 95, waiting: 0 });
  expect(await admitted(slots.acquire(10))).toBe(false);
  slots.release(0, 95);
  expect(slots.inFlight()).toEqual({ calls: 1, bytes: 10, waiting: 0 });
});

test('a line larger than all the bytes allowed gets in when nothing else is, and keeps everything else out', async () => {
  const slots = createSlots({ callsMax: 10, bytesMax: 100 });
  await slots.acquire(1);
  const huge = slots.acquire(500);
  const small = slots.acquire(1);
  expect(await admitted(huge)).toBe(false);
  // Nor does the small one overtake it: the huge one would wait for ever.
  expect(await admitted(small)).toBe(false);
  slots.release(1, 1);
  expect(await admitted(huge)).toBe(true);
  expect(await admitted(small)).toBe(false);
  slots.release(1, 500);
  expect(await admitted(small)).toBe(true);
});

test('waiters are served in order, as many at once as fit', async () => {
  const slots = createSlots({ callsMax: 3, bytesMax: 100 });
  await slots.acquire(90);
  const order: number[] = [];
  const waiters = [30, 30, 30, 30].map((size, index) => slots.acquire(size).then(() => order.push(index)));
  slots.release(1, 90);
  await Promise.all(waiters.slice(0, 3));
  expect(order).toEqual([0, 1, 2]);
  expect(slots.inFlight()).toEqual({ calls: 3, bytes: 90, waiting: 1 });
});

test('whatever is acquired and given back, the limits hold, the order is kept, and all get in in the end', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.integer({ min: 0, max: 150 }), { maxLength: 40 }),
      fc.integer({ min: 1, max: 5 }),
      fc.infiniteStream(fc.nat()),
      async (sizes, callsMax, choices) => {
        const slots = createSlots({ callsMax, bytesMax: 100 });
        const running: number[] = [];
        const started: number[] = [];
        sizes.forEach((size, index) => {
          void slots.acquire(size).then(() => {
            started.push(index);
            running.push(size);
          });
        });
        for (;;) {
          await new Promise((resolve) => setImmediate(resolve));
          const { calls, bytes, waiting } = slots.inFlight();
          expect(calls).toBe(running.length);
          expect(bytes).toBe(running.reduce((sum, size) => sum + size, 0));
          expect(calls).toBeLessThanOrEqual(callsMax);
          expect(bytes <= 100 || calls === 1).toBe(true);
          expect(calls > 0 || waiting === 0).toBe(true); // nobody waits for nothing
          if (calls === 0) break;
          const [size] = running.splice((choices.next().value ?? 0) % running.length, 1);
          slots.release(1, size ?? 0);
        }
        expect(started).toEqual(sizes.map((_, index) => index));
        expect(slots.inFlight()).toEqual({ calls: 0, bytes: 0, waiting: 0 });
      },
    ),
    { numRuns: 50 },
  );
});

test('calls of one group leave some to others, and one that is given back goes to another', async () => {
  const slots = createSlots({ callsMax: 16, bytesMax: 1_000 });
  const enter = async (group: string, count: number): Promise<number> => {
    const all = await Promise.all(
      Array.from({ length: count }, () => admitted(slots.of('ws', 'place', group).acquire(1))),
    );
    return all.filter(Boolean).length;
  };
  // Not answered yet, of whichever batch they are.
  expect(await enter('a', 20)).toBe(2);
  expect(await enter('b', 20)).toBe(0);
  slots.of('ws', 'place', 'a').release(1, 1, true);
  expect(slots.inFlight()).toMatchObject({ calls: 3 });
  expect(await admitted(slots.of('ws', 'elsewhere', 'b').acquire(1))).toBe(true);
});

test('a workspace that has no call may begin one where others have taken all, and no second one', async () => {
  const slots = createSlots({ callsMax: 2, bytesMax: 100 });
  expect(await admitted(slots.of('ws', 'a').acquire(1))).toBe(true);
  expect(await admitted(slots.of('ws', 'b').acquire(1))).toBe(true);
  expect(await admitted(slots.of('ws', 'c').acquire(1))).toBe(false);
  const other = slots.of('another', 'a');
  expect(await admitted(other.acquire(1))).toBe(true);
  const second = other.acquire(1);
  expect(await admitted(second)).toBe(false);
  other.release(1, 1, true);
  expect(await admitted(second)).toBe(true);
});

test('groups take turns, and the lines of one keep their order', async () => {
  const slots = createSlots({ callsMax: 1, bytesMax: 100 });
  await slots.of('ws').acquire(1);
  const order: string[] = [];
  const all = ['a1', 'a2', 'a3', 'b1', 'c1', 'c2'].map((name) =>
    slots
      .of('ws', name.slice(0, 1))
      .acquire(1)
      .then(() => {
        order.push(name);
        slots.of('ws', name.slice(0, 1)).release(1, 1);
      }),
  );
  slots.of('ws').release(1, 1);
  await Promise.all(all);
  expect(order).toEqual(['a1', 'b1', 'c1', 'a2', 'c2', 'a3']);
});

test('of whatever groups the lines are, all get in in the end, and no group alone has more than seven eighths of the calls', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.record({ group: fc.constantFrom('a', 'b', 'c'), size: fc.integer({ min: 0, max: 40 }) }), {
        maxLength: 40,
      }),
      fc.integer({ min: 2, max: 40 }),
      fc.infiniteStream(fc.nat()),
      async (lines, callsMax, choices) => {
        const slots = createSlots({ callsMax, bytesMax: 1_000 });
        const running: typeof lines = [];
        let started = 0;
        for (const line of lines) {
          void slots
            .of('ws', line.group)
            .acquire(line.size)
            .then(() => {
              started += 1;
              running.push(line);
            });
        }
        for (;;) {
          await new Promise((resolve) => setImmediate(resolve));
          const { calls, bytes, waiting } = slots.inFlight();
          expect(calls).toBe(running.length);
          expect(bytes).toBe(running.reduce((sum, { size }) => sum + size, 0));
          expect(calls).toBeLessThanOrEqual(callsMax);
          expect(calls > 0 || waiting === 0).toBe(true);
          const groups = new Set(running.map(({ group }) => group));
          expect(groups.size > 1 || calls <= Math.ceil((callsMax * 7) / 8)).toBe(true);
          if (calls === 0) break;
          const [line] = running.splice((choices.next().value ?? 0) % running.length, 1);
          if (line) slots.of('ws', line.group).release(1, line.size);
        }
        expect(started).toBe(lines.length);
        expect(slots.inFlight()).toEqual({ calls: 0, bytes: 0, waiting: 0 });
      },
    ),
    { numRuns: 50 },
  );
});

test('a line that comes back goes before those that have not begun, and these still get their turn', async () => {
  const slots = createSlots({ callsMax: 1, bytesMax: 100 });
  await slots.acquire(1);
  const order: string[] = [];
  const enter = (name: string, isReturning: boolean) =>
    slots.acquire(1, { isReturning }).then(() => {
      order.push(name);
      slots.release(1, 1);
    });
  const all = [
    ...['b1', 'b2', 'b3'].map((name) => enter(name, false)),
    ...['r1', 'r2', 'r3', 'r4', 'r5', 'r6', 'r7'].map((name) => enter(name, true)),
  ];
  slots.release(1, 1);
  await Promise.all(all);
  expect(order).toEqual(['r1', 'r2', 'r3', 'b1', 'r4', 'r5', 'r6', 'b2', 'r7', 'b3']);
});

test('who does not wait any longer holds nothing, and lets in those behind', async () => {
  const slots = createSlots({ callsMax: 10, bytesMax: 100 });
  await slots.acquire(10);
  const left = new AbortController();
  const huge = slots.acquire(500, { signal: left.signal });
  const small = slots.acquire(5);
  expect(await admitted(small)).toBe(false);
  left.abort();
  expect(await huge).toBe(false);
  expect(await small).toBe(true);
  expect(slots.inFlight()).toEqual({ calls: 2, bytes: 15, waiting: 0 });
  expect(await slots.acquire(5, { signal: left.signal })).toBe(false);
  expect(slots.inFlight()).toEqual({ calls: 2, bytes: 15, waiting: 0 });
});
