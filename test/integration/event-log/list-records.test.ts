import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { listRecords } from '#apps/api/events/list-records.ts';
import { replayEvents } from '#apps/api/events/replay-events.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { fileModel } from '#libs/files/file-model.ts';
import { createPageReads } from '#libs/http/answers/page-reads.ts';
import { createHttpApp } from '#libs/http/create-http-app.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { batchCreated, batchValidated, chunkRedelivered, commandOn, fileUploaded } from './streams.ts';

const database = useTestDatabase();
const bytesMax = 64 * 1_024;

type State = { stream: string; version: number; is_newest: boolean; state: Record<string, unknown> };
type Page = { data: State[]; first_id: string | null; last_id: string | null; has_more: boolean };

let url: string;
let eventLog: EventLog;
let stop: () => Promise<unknown>;
beforeAll(async () => {
  eventLog = createEventLog(database.db);
  const memory = createMemoryBudget(64 * 1_048_576);
  const turns = createTurns({ runningMax: 2, waitingMax: 16 }, 'replays');
  const replays = createPageReads({ memory, bytesMax, turns });
  const deps = { db: database.db, replays, stallTimeoutMs: 10_000 };
  const app = createHttpApp({
    routes: [listRecords(deps), replayEvents(deps)],
    authenticate: () => caller,
    logger: createLogger({ name: 'test', level: 'silent' }),
  });
  const server = app.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  url = `http://127.0.0.1:${(server.address() as { port: number }).port}/v1/events`;
  stop = () => new Promise((resolve) => server.close(resolve));
});
afterAll(() => stop());

const caller = {
  workspaceId: 'ws_1',
  keyId: 'key_1',
  principal: { type: 'service_key', id: 'key_1', role: null },
  scopes: 'all',
  defaults: { configId: null, allowsConfigOverride: true, metadata: null },
  expiresAtMs: Number.POSITIVE_INFINITY,
} as const;

const ask = async <Answer>(path: string) => (await (await fetch(url + path)).json()) as Answer;
const list = (query: string) => ask<Page>(`/records?${query}`);

/** Reads all pages. */
async function listAll(query: string): Promise<{ states: State[]; pages: number }> {
  const states: State[] = [];
  for (let [pages, after] = [1, '']; ; pages += 1) {
    const page = await list(`${query}${after}`);
    states.push(...page.data);
    if (!page.has_more) return { states, pages };
    after = `&after=${page.last_id}`;
  }
}

/** A moment that no event has. */
async function momentNow(): Promise<string> {
  const { rows } = await sql<{ at: Date }>`
    select clock_timestamp() as at, pg_sleep(0.003)`.execute(database.db);
  return (rows[0]?.at ?? new Date()).toISOString();
}

const appendTo = (id: string, ...events: Parameters<typeof batchCreated>[0][]) =>
  eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, events.map(batchCreated)));

test('a list has the records that existed at the moment, each as its replay shows it', async () => {
  for (const id of ['batch_a', 'batch_b', 'batch_c']) await appendTo(id, { metadata: { name: id } });
  const validate = (id: string) =>
    eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, [batchValidated(7)]));
  await validate('batch_b');
  const at = await momentNow();
  await validate('batch_a');
  await appendTo('batch_later', {});
  await eventLog.transact({ ...commandOn('batch_other'), workspaceId: 'ws_2' }, (unit) =>
    unit.append(batchModel, 'batch_other', [batchCreated()]),
  );

  const page = await list(`kind=batch&at=${at}`);
  expect(page).toMatchObject({ first_id: 'batch_c', last_id: 'batch_a', has_more: false });
  expect(page.data.map(({ stream, version, is_newest }) => [stream, version, is_newest])).toEqual([
    ['batch_c', 1, true],
    ['batch_b', 2, true],
    ['batch_a', 1, false],
  ]);
  for (const state of page.data) expect(state).toEqual(await ask(`/replay?stream=${state.stream}&at=${at}`));
  expect((await list('kind=batch')).data.map(({ stream }) => stream)).toEqual([
    'batch_later',
    'batch_c',
    'batch_b',
    'batch_a',
  ]);
  const { states, pages } = await listAll(`kind=batch&at=${at}&limit=1`);
  expect({ states, pages }).toEqual({ states: page.data, pages: 3 });
});

test('a deleted record is in the lists of the moments before', async () => {
  const id = 'file-deleted';
  await eventLog.transact(commandOn(id), (unit) => unit.append(fileModel, id, [fileUploaded()]));
  const at = await momentNow();
  await eventLog.transact(commandOn(id), (unit) => unit.append(fileModel, id, [{ type: 'file.deleted', data: {} }]));
  expect(await list(`kind=file&at=${at}`)).toMatchObject({
    data: [{ stream: id, version: 1, is_newest: false, state: { filename: 'in.jsonl', deleted_at: null } }],
  });
  expect((await list('kind=file')).data).toEqual([]);
});

test('a page ends before it is too large, and the next one continues', async () => {
  const large = 'x'.repeat(bytesMax / 4);
  const ids = ['batch_0', 'batch_1', 'batch_2', 'batch_3', 'batch_4', 'batch_5'];
  for (const id of ids) await appendTo(id, { metadata: { large } });
  const at = await momentNow();
  // Half of them are replayed.
  for (const id of ids.slice(3))
    await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, [chunkRedelivered(1)]));
  const first = await list(`kind=batch&at=${at}`);
  expect(first).toMatchObject({ has_more: true });
  expect(JSON.stringify(first).length).toBeLessThan(bytesMax + 1_024);
  const { states, pages } = await listAll(`kind=batch&at=${at}`);
  expect(pages).toBeGreaterThan(1);
  expect(states.map(({ stream }) => stream).slice(0, 6)).toEqual(ids.toReversed());
});

test('a wrong cursor, kind or moment is refused', async () => {
  for (const [query, param] of [
    ['kind=batch&after=batch_nowhere', 'after'],
    ['kind=batch&after=batch_other', 'after'],
    ['kind=nothing', 'kind'],
    ['at=yesterday&kind=batch', 'at'],
  ])
    expect(await list(query ?? '')).toMatchObject({ error: { code: 'invalid_value', param } });
});
