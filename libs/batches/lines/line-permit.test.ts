import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { HeldPlace, Wait } from '#libs/calls/call.ts';
import { createLinePermit, type LinePermit } from './line-permit.ts';
import { createPermitPool } from './permit-pool.ts';

const what: Wait = { reason: 'rate_limited', label: 'p', model: 'm', untilMs: null };
const nothing = { calls: 0, bytes: 0, waiting: 0 };
const tick = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

async function setUp(callsMax = 1, place?: HeldPlace) {
  const permits = createPermitPool({ callsMax, bytesMax: 100 });
  const stop = new AbortController();
  const waits = { now: 0, all: 0 };
  await permits.acquire(10);
  const permit = createLinePermit({
    permits,
    bytes: 10,
    stop: stop.signal,
    onWait() {
      waits.now += 1;
      waits.all += 1;
      return () => (waits.now -= 1);
    },
    place,
  });
  return { permits, stop, waits, permit };
}

/** A wait that lasts until `end` is called or its signal aborts. */
function openWait() {
  const ended = Promise.withResolvers<void>();
  const wait = (signal: AbortSignal): Promise<void> => {
    signal.addEventListener('abort', () => ended.resolve(), { once: true });
    return ended.promise;
  };
  return { wait, end: () => ended.resolve() };
}

test('a line that waits holds no permit, and has one again when it continues', async () => {
  const { permits, waits, permit } = await setUp();
  const { wait, end } = openWait();
  const waited = permit.waitWithoutPermit(what, wait);
  expect(permits.inFlight()).toEqual(nothing);
  expect(waits.now).toBe(1);
  end();
  await waited;
  expect(permits.inFlight()).toEqual({ calls: 1, bytes: 10, waiting: 0 });
  expect(waits.now).toBe(0);
  expect(permit.isAbandoned()).toBe(false);
  permit.end(4); // Its result is smaller.
  expect(permits.inFlight()).toEqual({ calls: 0, bytes: 4, waiting: 0 });
});

test.each([
  ['waits', (permit: LinePermit): unknown => permit.waitWithoutPermit(what, openWait().wait)],
  ['ends', (permit: LinePermit): unknown => permit.end(0)],
])('a line that %s gives back the place that was held for it', async (_how, leave) => {
  let given = 0;
  const { permit } = await setUp(1, { release: () => (given += 1), isTaken: () => false });
  expect(given).toBe(0);
  leave(permit);
  expect(given).toBe(1);
});

test('a stopped line that is waiting holds nothing and must not call', async () => {
  const { permits, stop, waits, permit } = await setUp();
  const waited = permit.waitWithoutPermit(what, openWait().wait);
  stop.abort();
  await expect(waited).rejects.toMatchObject({ code: 'call_aborted' });
  expect(permit.isAbandoned()).toBe(true);
  expect(waits.now).toBe(0);
  permit.end(0);
  expect(permits.inFlight()).toEqual(nothing);
});

test('a line is stopped while it waits for its permit after another wait', async () => {
  const { permits, stop, permit } = await setUp();
  const { wait, end } = openWait();
  const waited = permit.waitWithoutPermit(what, wait);
  await permits.acquire(20); // Another line took the permit.
  end();
  await tick();
  expect(permits.inFlight()).toEqual({ calls: 1, bytes: 20, waiting: 1 });
  stop.abort();
  await expect(waited).rejects.toMatchObject({ code: 'call_aborted' });
  permit.end(0);
  expect(permits.inFlight()).toEqual({ calls: 1, bytes: 20, waiting: 0 });
});

test('a line that is stopped at the moment it gets its permit releases it', async () => {
  const { permits, stop, permit } = await setUp();
  const { wait, end } = openWait();
  const waited = permit.waitWithoutPermit(what, wait);
  await permits.acquire(20);
  end();
  await tick();
  permits.release(1, 20); // The line owns the permit from here on.
  stop.abort();
  await expect(waited).rejects.toMatchObject({ code: 'call_aborted' });
  permit.end(0);
  expect(permits.inFlight()).toEqual(nothing);
});

test('a line that is calling when the stop comes may finish, but begins no wait', async () => {
  const { permits, stop, waits, permit } = await setUp();
  stop.abort();
  expect(permit.isAbandoned()).toBe(false);
  await expect(permit.waitWithoutPermit(what, openWait().wait)).rejects.toMatchObject({ code: 'call_aborted' });
  expect(waits.all).toBe(0);
  // It must not try again either.
  await expect(permit.waitWithoutPermit(what, openWait().wait)).rejects.toMatchObject({ code: 'call_aborted' });
  permit.end(0);
  expect(permits.inFlight()).toEqual(nothing);
});

test('a wait that fails ends its line without an outcome', async () => {
  const { permits, waits, permit } = await setUp();
  await expect(
    permit.waitWithoutPermit(what, () => Promise.reject(new Error('the process stops'))),
  ).rejects.toMatchObject({
    code: 'call_aborted',
  });
  permit.end(0);
  expect(permit.isAbandoned()).toBe(true);
  expect(waits.now).toBe(0);
  expect(permits.inFlight()).toEqual(nothing);
});

test('whatever lines do and whenever they are stopped, the limits hold and no permit leaks', async () => {
  const lineOf = fc.record({ bytes: fc.integer({ min: 0, max: 150 }), waits: fc.array(fc.nat(4), { maxLength: 4 }) });
  await fc.assert(
    fc.asyncProperty(
      fc.array(lineOf, { maxLength: 25 }),
      fc.integer({ min: 1, max: 4 }),
      fc.nat(60),
      async (lines, callsMax, stopAfter) => {
        const permits = createPermitPool({ callsMax, bytesMax: 100 });
        const stop = new AbortController();
        let calling = 0;
        let now = 0;
        const ticks = async (count: number, signal?: AbortSignal): Promise<void> => {
          for (let done = 0; done < count; done += 1) {
            if (signal?.aborted === true) return;
            await tick();
          }
        };
        const failures: unknown[] = [];
        const run = async ({ bytes, waits }: (typeof lines)[number]): Promise<void> => {
          if (!(await permits.acquire(bytes, { signal: stop.signal }))) return;
          const permit = createLinePermit({
            permits,
            bytes,
            stop: stop.signal,
            onWait() {
              now += 1;
              return () => (now -= 1);
            },
          });
          try {
            for (const wait of waits) {
              calling += 1;
              expect(calling).toBeLessThanOrEqual(callsMax);
              await ticks(wait % 2);
              calling -= 1;
              await permit.waitWithoutPermit(what, (signal) => ticks(wait, signal));
            }
            permit.end(0);
          } catch (error) {
            failures.push({ error, isStopped: stop.signal.aborted });
            permit.end(0);
          }
        };
        const running = lines.map(run);
        await ticks(stopAfter);
        stop.abort();
        await Promise.all(running);
        const abandoned = { error: expect.objectContaining({ code: 'call_aborted' }), isStopped: true };
        expect(failures).toEqual(failures.map(() => abandoned));
        expect(permits.inFlight()).toEqual(nothing);
        expect(now).toBe(0);
      },
    ),
    { numRuns: 100 },
  );
});
