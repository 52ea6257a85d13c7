import { expect, test, vi } from 'vitest';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createProcessLease, type ProcessLease } from '#libs/queue/process-lease.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });

/** A lease that observes by a clock of the test. Its loops run in real time, about once a second. */
async function start(stopAfter: (stop: () => Promise<void>) => void, clock = { nowMs: 0 }) {
  const takenOver: string[] = [];
  const lease: ProcessLease = createProcessLease({
    db: database.db,
    takeOver: async (_tx, id) => void takenOver.push(id),
    onTakenOver: () => {},
    logger,
    monotonicMs: () => clock.nowMs,
  });
  await lease.start?.();
  stopAfter(async () => await lease.stop?.());
  await vi.waitFor(async () => expect(await beatOf(lease.holder().id)).toBeDefined(), { timeout: 10_000 });
  return { lease, clock, takenOver };
}

async function beatOf(id: string): Promise<number | undefined> {
  const row = await database.db.selectFrom('worker_process').select('beat').where('id', '=', id).executeTakeFirst();
  return row?.beat;
}

const silent = async (id: string): Promise<void> => {
  await database.db.insertInto('worker_process').values({ id }).execute();
};

/** Lets the observer look about once in each step of its clock. */
async function pass(clock: { nowMs: number }, ms: number, stepMs: number): Promise<void> {
  for (let passed = 0; passed < ms; passed += stepMs) {
    clock.nowMs += stepMs;
    await new Promise((resolve) => setTimeout(resolve, 1_100));
  }
}

test('a process that counts no further is given up after twelve seconds, and one that counts is not', async ({
  onTestFinished,
}) => {
  const { clock, takenOver, lease } = await start(onTestFinished);
  const other = await start(onTestFinished);
  await silent('process_dead');
  await pass(clock, 9_000, 3_000);
  expect(takenOver).toEqual([]);
  await pass(clock, 6_000, 3_000);
  expect(takenOver).toEqual(['process_dead']);
  expect(await beatOf('process_dead')).toBeUndefined();
  expect(await beatOf(other.lease.holder().id)).toBeGreaterThan(0);
  expect(lease.holder().lost.aborted).toBe(false);
});

test('after a gap in which the database did not answer, or the observer stood still, the silence counts anew', async ({
  onTestFinished,
}) => {
  const { clock, takenOver } = await start(onTestFinished);
  await silent('process_hung');
  await pass(clock, 6_000, 3_000);
  await pass(clock, 20_000, 20_000);
  await pass(clock, 9_000, 3_000);
  expect(takenOver).toEqual([]);
  await pass(clock, 6_000, 3_000);
  expect(takenOver).toEqual(['process_hung']);
});

test('a process that was given up learns of it, and goes on under another identity', async ({ onTestFinished }) => {
  const { lease } = await start(onTestFinished);
  const before = lease.holder();
  await database.db.deleteFrom('worker_process').where('id', '=', before.id).execute();
  await vi.waitFor(() => expect(before.lost.aborted).toBe(true), { timeout: 10_000 });
  const after = lease.holder();
  expect(after.id).not.toBe(before.id);
  expect(after.lost.aborted).toBe(false);
  await vi.waitFor(async () => expect(await beatOf(after.id)).toBeDefined(), { timeout: 10_000 });
});

test('a process that stops frees its work at once', async () => {
  const stops: (() => Promise<void>)[] = [];
  const { lease, takenOver } = await start((stop) => void stops.push(stop));
  const { id } = lease.holder();
  for (const stop of stops) await stop();
  expect(takenOver).toEqual([id]);
  expect(await beatOf(id)).toBeUndefined();
});
