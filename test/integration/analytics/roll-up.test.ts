import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { checkRollups, rebuildRollups } from '#libs/analytics/rollups/check-rollups.ts';
import { hasWork, rollUp } from '#libs/analytics/rollups/roll-up.ts';
import { createRollUpRunner, readRollupLag } from '#libs/analytics/rollups/run-roll-up.ts';
import { sweepRollups } from '#libs/analytics/rollups/sweep-rollups.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { runCheck } from '#test/run-check.ts';
import { dayMs, hourMs, logRetentionMs, minuteMs, rollUpAll, writeCalls } from './log-kit.ts';

let database: TestDatabase;
beforeEach(async () => {
  database = await createTestDatabase();
});
afterEach(() => database.drop());

/** In the middle of a day, so that what is some hours ago is of the same day. */
const now = Math.floor(Date.now() / dayMs) * dayMs + 14 * hourMs + 10 * minuteMs;

const options = { nowMs: now, logRetentionMs };
const check = () => checkRollups(database.db, () => {});

/** The calls that each grain has, in all of its buckets. */
async function counts(): Promise<Record<string, number>> {
  const { rows } = await sql<{ grain: string; requests: number }>`
    select grain, sum(requests)::int as requests from call_rollup group by grain`.execute(database.db);
  return Object.fromEntries(rows.map(({ grain, requests }) => [grain, requests]));
}

/** As if hours and days had been closed until `now`, whatever the time of the test is. */
const closeUntilNow = (): Promise<unknown> =>
  sql`update rollup_state set tens_until = ${new Date(Math.floor(now / hourMs) * hourMs)},
    hours_until = ${new Date(Math.floor(now / hourMs) * hourMs)},
    days_until = ${new Date(Math.floor(now / dayMs) * dayMs)}`.execute(database.db);

test('calls are counted once by minute, and by hour and day when those have ended', async () => {
  await closeUntilNow();
  await writeCalls(database.db, [{ at: now - 30 * hourMs }, { at: now - 3 * hourMs }, { at: now - 5_000 }]);
  await rollUpAll(database.db, now);
  expect(await counts()).toEqual({ minute: 3, hour: 2, day: 1 });
  // An hour and ten hours later the current hour and day have ended.
  await rollUpAll(database.db, now + hourMs);
  expect(await counts()).toEqual({ minute: 3, hour: 3, day: 1 });
  await rollUpAll(database.db, now + 10 * hourMs);
  expect(await counts()).toEqual({ minute: 3, hour: 3, day: 3 });
  expect(await check()).toMatchObject({ different: 0, waiting: 0 });
});

test('rows that come late change the minute, hour and day that they belong to', async () => {
  await closeUntilNow();
  await writeCalls(database.db, [{ at: now - 30 * hourMs }]);
  await rollUpAll(database.db, now);
  await writeCalls(database.db, [{ at: now - 30 * hourMs + 1_000 }, { at: now - 40 * hourMs }]);
  expect(await hasWork(database.db)).toBe(true);
  await rollUpAll(database.db, now);
  expect(await counts()).toEqual({ minute: 3, hour: 3, day: 3 });
  expect((await check()).different).toBe(0);
});

test('rows of a transaction that is still open are rolled up when it has ended', async () => {
  const { db } = database;
  await writeCalls(db, [{ at: now - minuteMs }]);
  const { promise: passed, resolve: pass } = Promise.withResolvers<void>();
  const { promise: written, resolve: hasWritten } = Promise.withResolvers<void>();
  const open = db.transaction().execute(async (tx) => {
    await writeCalls(tx, [{ at: now - minuteMs }]);
    hasWritten();
    await passed;
  });
  await written;
  await rollUpAll(db, now);
  expect(await counts()).toMatchObject({ minute: 1 });
  pass();
  await open;
  await rollUpAll(db, now);
  expect(await counts()).toMatchObject({ minute: 2 });
});

test('two processes never roll up at once, and the second goes on when the first is killed', async () => {
  const { db, pool } = database;
  await writeCalls(db, [{ at: now - minuteMs }]);
  const first = await pool.connect();
  await first.query('begin');
  await first.query('select from rollup_state for update');
  expect(await rollUp(db, options)).toEqual({ state: 'busy', minutes: 0, hasMore: false });
  expect((await readRollupLag(db)).changes).toBe(1);
  first.release(true); // its session ends
  await eventually(
    () => rollUp(db, options),
    ({ state }) => state === 'done',
  );
  expect(await counts()).toMatchObject({ minute: 1 });
  expect(await readRollupLag(db)).toEqual({ changes: 0, seconds: 0 });
});

test('a pass that fails changes nothing, and the next one does its work', async () => {
  const { db } = database;
  await writeCalls(db, [{ at: now - minuteMs }]);
  await sql`alter table metadata_rollup add constraint broken check (false)`.execute(db);
  await writeCalls(db, [{ at: now - minuteMs, metadata: { _user: 'ann' } }]);
  await expect(rollUp(db, options)).rejects.toThrow('broken');
  expect(await counts()).toEqual({});
  await sql`alter table metadata_rollup drop constraint broken`.execute(db);
  await rollUpAll(db, now);
  expect(await counts()).toMatchObject({ minute: 2 });
});

test('a long backlog is rolled up in parts, the newest minutes first', async () => {
  const { db } = database;
  await writeCalls(db, [{ at: now - 100 * minuteMs }]);
  await writeCalls(db, [{ at: now - minuteMs }]);
  // As the migration does for the rows that are there already.
  await sql`delete from request_log_change`.execute(db);
  await sql`insert into request_log_change (first_at, last_at)
    values (${new Date(now - 120 * minuteMs)}, ${new Date(now)})`.execute(db);
  expect(await rollUp(db, { ...options, minutesMax: 30 })).toMatchObject({ minutes: 30, hasMore: true });
  expect(await counts()).toMatchObject({ minute: 1 });
  await rollUpAll(db, now);
  expect(await counts()).toMatchObject({ minute: 2 });
  expect((await check()).different).toBe(0);
});

test('retention deletes old minutes and keeps their hours; a late row then makes the whole hour again', async () => {
  const { db } = database;
  await closeUntilNow();
  const old = now - 50 * hourMs;
  await writeCalls(db, [{ at: old }, { at: old + 20 * minuteMs }, { at: now - minuteMs }]);
  await rollUpAll(db, now);
  const retention = { minute: dayMs, hour: 90 * dayMs, day: 400 * dayMs };
  await sweepRollups(db, { retention, logRetentionMs, nowMs: now });
  expect(await counts()).toEqual({ minute: 1, hour: 2, day: 2 });
  await writeCalls(db, [{ at: old + minuteMs }]);
  await rollUpAll(db, now);
  expect(await counts()).toMatchObject({ hour: 3, day: 3 });
  await sweepRollups(db, { retention, logRetentionMs, nowMs: now });
  expect(await counts()).toEqual({ minute: 1, hour: 3, day: 3 });
  expect((await check()).different).toBe(0);
});

test('days that the log does not have any more stay in the rollups, also when a late row makes their partition again', async () => {
  const { db } = database;
  await closeUntilNow();
  const old = now - 40 * dayMs;
  await writeCalls(db, [{ at: old }]);
  await rollUp(db, { nowMs: now, logRetentionMs: 60 * dayMs });
  await sql`truncate request_log_row, request_log_pack`.execute(db);
  await writeCalls(db, [{ at: old + 1_000 }]);
  await rollUpAll(db, now);
  expect(await counts()).toMatchObject({ minute: 1, day: 1 });
});

test('the check finds rollups that differ from the log, and its repair makes them equal', async () => {
  const { db } = database;
  await closeUntilNow();
  await writeCalls(db, [{ at: now - 30 * hourMs }, { at: now - 30 * hourMs }]);
  await rollUpAll(db, now);
  expect(await runCheck(database, 'analytics')).toMatchObject({ ok: true, findings: [] });
  await sql`update call_rollup set requests = requests + 1 where grain = 'day'`.execute(db);
  // The existing row, and the one that is expected.
  const message = '2 rows differ from the request log';
  const subject = new Date(now - 30 * hourMs).toISOString().slice(0, 10);
  expect(await runCheck(database, 'analytics')).toMatchObject({
    ok: false,
    counts: { different_rows: 2 },
    findings: [{ state: 'problem', subject, message }],
  });
  const repaired = await runCheck(database, 'analytics', { repair: true });
  expect(repaired).toMatchObject({ ok: true, findings: [{ state: 'repaired', subject, message }] });
  expect(await runCheck(database, 'analytics')).toMatchObject({ ok: true, findings: [] });
});

test('a check finds rows of one value that differ, or that were never made, and a rebuild makes them', async () => {
  const { db } = database;
  await closeUntilNow();
  await writeCalls(db, [{ at: now - 30 * hourMs, model: 'small', metadata: { _user: 'ann' } }]);
  await rollUpAll(db, now);
  await sql`update value_rollup set hits = hits + 1 where grain = 'hour' and key in ('model', 'metadata._user')`.execute(
    db,
  );
  expect((await check()).different).toBe(4);
  await sql`truncate value_rollup`.execute(db);
  expect((await check()).different).toBeGreaterThan(4);
  await rebuildRollups(db, { nowMs: now, logRetentionMs, onProgress: () => {} });
  expect((await check()).different).toBe(0);
  const { rows } = await sql<{ requests: number }>`
    select sum(requests)::int as requests from value_rollup where key = 'metadata._user'`.execute(db);
  expect(rows).toEqual([{ requests: 4 }]); // its minute, ten minutes, hour and day
});

test('workers roll up by themselves, and stop in the middle of nothing', async () => {
  const { db } = database;
  const { logger } = createTestLogger();
  const runner = createRollUpRunner({ db, now: () => now, logRetentionMs, intervalMs: 10, logger });
  runner.start();
  await writeCalls(db, [{ at: now - minuteMs }]);
  await eventually(counts, ({ minute }) => minute === 1);
  await runner.stop();
});
