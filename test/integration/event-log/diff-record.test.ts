import { afterAll, beforeAll, expect, test } from 'vitest';
import { diffEvents } from '#apps/api/events/diff-events.ts';
import { replayEvents } from '#apps/api/events/replay-events.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createPageReads } from '#libs/http/answers/page-reads.ts';
import { createHttpApp } from '#libs/http/create-http-app.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { batchCreated, batchValidated, commandOn } from './streams.ts';

// A batch of a million lines has up to 15,625 events with results, whose bits and roots a replay does not read.

const database = useTestDatabase();
const settles = 15_625;
const linesOfSettle = 64;
const lines = settles * linesOfSettle;

const settled = (index: number): BatchEvent => ({
  type: 'batch.lines_settled',
  data: {
    chunks: [{ chunk: index, settled: Buffer.alloc(linesOfSettle / 8, index).toString('base64') }] as never,
    completed: linesOfSettle - (index % 2),
    failed: index % 2,
    usage: [
      {
        provider: 'openai',
        model: 'gpt-test',
        input_tokens: 100,
        cached_tokens: 1,
        output_tokens: 10,
        reasoning_tokens: 0,
        cost: '0.0001',
        price_version: 'v1',
      },
    ],
    results_root: index.toString(16).padStart(64, '0'),
  },
});

let url: string;
let stop: () => Promise<unknown>;
beforeAll(async () => {
  const eventLog = createEventLog(database.db);
  const append = (events: readonly BatchEvent[]) =>
    eventLog.transact(commandOn('batch_large'), (unit) => unit.append(batchModel, 'batch_large', events));
  await append([batchCreated({}), batchValidated(lines)]);
  for (let from = 0; from < settles; from += 1_000) {
    const count = Math.min(1_000, settles - from);
    await append(Array.from({ length: count }, (_each, index) => settled(from + index)));
  }
  const memory = createMemoryBudget(64 * 1_048_576);
  const turns = createTurns({ runningMax: 2, waitingMax: 16 }, 'replays');
  const deps = { db: database.db, replays: createPageReads({ memory, bytesMax: 4 * 1_048_576, turns }) };
  const app = createHttpApp({
    routes: [replayEvents(deps), diffEvents(deps)],
    authenticate: () => caller,
    logger: createLogger({ name: 'test', level: 'silent' }),
  });
  const server = app.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  url = `http://127.0.0.1:${(server.address() as { port: number }).port}/v1/events`;
  stop = () => new Promise((resolve) => server.close(resolve));
}, 120_000);
afterAll(() => stop());

const caller = {
  workspaceId: 'ws_1',
  keyId: 'key_1',
  principal: { type: 'service_key', id: 'key_1', role: null },
  scopes: 'all',
  defaults: { configId: null, allowsConfigOverride: true, metadata: null },
  expiresAtMs: Number.POSITIVE_INFINITY,
} as const;

const ask = async (path: string) => (await (await fetch(url + path)).json()) as Record<string, unknown>;

test('the state of a batch of a million lines is that of its row', async () => {
  const { state, ...head } = await ask('/replay?stream=batch_large');
  expect(head).toMatchObject({ version: settles + 2, is_newest: true });
  const row = await database.db.selectFrom('batch').selectAll().where('id', '=', 'batch_large').executeTakeFirst();
  const own = ['id', 'workspace_id', 'version', 'updated_at', 'last_event_id'];
  const columns = Object.fromEntries(Object.entries(row ?? {}).filter(([name]) => !own.includes(name)));
  expect(state).toEqual(JSON.parse(JSON.stringify(columns)));
});

test('its changes are a few operations, with the number of events behind each and the last of these', async () => {
  const from = 1_000;
  const diff = (await ask(`/diff?stream=batch_large&from=${from}`)) as {
    patch: { path: string; op: string; value: unknown }[];
    changes: { path: string; count: number; events: { stream_version: number }[] }[];
  };
  const events = settles + 2 - from;
  const completed = { op: 'replace', path: '/completed', value: lines - Math.floor(settles / 2) };
  expect(diff.patch).toContainEqual(completed);
  expect(diff.patch.map(({ path }) => path).toSorted()).toEqual([
    '/completed',
    '/failed',
    '/usage/cached_tokens',
    '/usage/cost',
    '/usage/input_tokens',
    '/usage/output_tokens',
  ]);
  const changes = diff.changes.toSorted((a, b) => (a.path < b.path ? -1 : 1));
  expect(changes.map(({ path, count }) => [path, count])).toEqual([
    ['/completed', events],
    ['/failed', Math.floor(events / 2)],
    ['/usage', events],
  ]);
  expect(changes[0]?.events.map(({ stream_version: version }) => version)).toEqual(
    Array.from({ length: 10 }, (_each, index) => settles + 2 - 9 + index),
  );
});
