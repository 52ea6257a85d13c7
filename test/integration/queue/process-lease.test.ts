import { spawn } from 'node:child_process';
import { expect, test, vi, type TestContext } from 'vitest';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { nameOsProcess } from '#libs/kernel/os-process.ts';
import { createProcessLease, type ProcessLease } from '#libs/queue/process-lease.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';

// These tests mostly wait, so they run concurrently, each in a separate database.
const logger = createLogger({ name: 'test', level: 'silent' });

async function createDatabase({ onTestFinished }: TestContext): Promise<TestDatabase> {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  return database;
}

/** A lease that observes by a clock of the test. Its loops run in real time, about once a second. */
async function start({ db }: TestDatabase, { onTestFinished }: TestContext, clock = { nowMs: 0 }) {
  const takenOver: string[] = [];
  const lease: ProcessLease = createProcessLease({
    db,
    takeOver: async (_tx, id) => void takenOver.push(id),
    onTakenOver: () => {},
    logger,
    monotonicMs: () => clock.nowMs,
  });
  await lease.start?.();
  const stop = async (): Promise<void> => await lease.stop?.();
  onTestFinished(stop);
  await vi.waitFor(async () => expect(await beatOf({ db }, lease.holder().id)).toBeDefined(), { timeout: 10_000 });
  return { lease, clock, takenOver, stop };
}

async function beatOf({ db }: Pick<TestDatabase, 'db'>, id: string): Promise<number | undefined> {
  const row = await db.selectFrom('worker_process').select('beat').where('id', '=', id).executeTakeFirst();
  return row?.beat;
}

const addSilent = async ({ db }: TestDatabase, id: string, osProcess: string | null = null): Promise<void> => {
  await db.insertInto('worker_process').values({ id, os_process: osProcess }).execute();
};

/** Lets the observer look about once in each step of its clock. */
async function pass(clock: { nowMs: number }, ms: number, stepMs: number): Promise<void> {
  for (let passed = 0; passed < ms; passed += stepMs) {
    clock.nowMs += stepMs;
    await new Promise((resolve) => setTimeout(resolve, 1_100));
  }
}

test.concurrent('a process that counts no further is given up after eleven seconds, and one that counts is not', async (context) => {
  const database = await createDatabase(context);
  const { clock, takenOver, lease } = await start(database, context);
  const other = await start(database, context);
  await addSilent(database, 'process_dead');
  await pass(clock, 9_000, 3_000);
  expect(takenOver).toEqual([]);
  await pass(clock, 6_000, 3_000);
  expect(takenOver).toEqual(['process_dead']);
  expect(await beatOf(database, 'process_dead')).toBeUndefined();
  expect(await beatOf(database, other.lease.holder().id)).toBeGreaterThan(0);
  expect(lease.holder().lost.aborted).toBe(false);
});

test.concurrent('after a gap in which the database did not answer, or the observer stood still, the silence counts anew', async (context) => {
  const database = await createDatabase(context);
  const { clock, takenOver } = await start(database, context);
  await addSilent(database, 'process_hung');
  await pass(clock, 6_000, 3_000);
  await pass(clock, 20_000, 20_000);
  await pass(clock, 9_000, 3_000);
  expect(takenOver).toEqual([]);
  await pass(clock, 6_000, 3_000);
  expect(takenOver).toEqual(['process_hung']);
});

test.concurrent('a process of the same host that was killed is given up after six seconds, and one that hangs is not', async (context) => {
  const database = await createDatabase(context);
  const { clock, takenOver } = await start(database, context);
  const [killed, hung] = [1, 2].map(() => spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)']));
  context.onTestFinished(() => void hung?.kill('SIGKILL'));
  await addSilent(database, 'process_killed', nameOsProcess(killed?.pid));
  await addSilent(database, 'process_hung', nameOsProcess(hung?.pid));
  killed?.kill('SIGKILL');
  hung?.kill('SIGSTOP');
  await pass(clock, 3_000, 3_000);
  expect(takenOver).toEqual([]);
  await pass(clock, 6_000, 3_000);
  expect(takenOver).toEqual(['process_killed']);
});

test.concurrent('a process that was given up learns of it, and goes on under another identity', async (context) => {
  const database = await createDatabase(context);
  const { lease } = await start(database, context);
  const before = lease.holder();
  await database.db.deleteFrom('worker_process').where('id', '=', before.id).execute();
  await vi.waitFor(() => expect(before.lost.aborted).toBe(true), { timeout: 10_000 });
  const after = lease.holder();
  expect(after.id).not.toBe(before.id);
  expect(after.lost.aborted).toBe(false);
  await vi.waitFor(async () => expect(await beatOf(database, after.id)).toBeDefined(), { timeout: 10_000 });
});

test.concurrent('a process that stops frees its work at once', async (context) => {
  const database = await createDatabase(context);
  const { lease, takenOver, stop } = await start(database, context);
  const { id } = lease.holder();
  await stop();
  expect(takenOver).toEqual([id]);
  expect(await beatOf(database, id)).toBeUndefined();
});
