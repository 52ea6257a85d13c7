import fc from 'fast-check';
import { sql } from 'kysely';
import { beforeAll, describe, expect, test } from 'vitest';
import { replayEvents } from '#apps/api/events/replay-events.ts';
import { listEvents, type EventPage } from '#libs/event-log/list-events.ts';
import { isClosed, logStart, readClosed, readStream } from '#libs/event-log/read-events.ts';
import { createHttpApp } from '#libs/http/create-http-app.ts';
import { createPageReads } from '#libs/http/answers/page-reads.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import { listVersions } from '#libs/records/lists/list-resources.ts';
import { insertEventSql } from '#test/insert-event.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();

const members = {
  stream_id: '$1::text',
  stream_version: 'number',
  type: "case number when 1 then 'prompt.created' else 'prompt.updated' end",
  workspace_id: '$2::text',
  data: "json_build_object('string', repeat('x', size), 'prompt_version', number, 'name', 'Large')",
};
const insertPromptSql = insertEventSql(
  members,
  'from unnest($3::int[]) with ordinality as wanted (size, number) order by number',
);

/**
 * Inserts the events of one prompt, each with about this many bytes. Waits until readers see them, which transactions of other
 * tests on the same server delay.
 */
async function insertPrompt(streamId: string, sizes: readonly number[], workspaceId = 'ws_1'): Promise<void> {
  await database.pool.query(insertPromptSql, [streamId, workspaceId, sizes]);
  const unseen = sql<{ count: number }>`
    select count(*)::int as count from event where stream_id = ${streamId} and not ${isClosed}`;
  await eventually(
    async () => (await unseen.execute(database.db)).rows[0]?.count,
    (count) => count === 0,
  );
}

const query = { workspaceId: 'ws_1', stream: null, type: null, after: null, limit: 100, bytesMax: 4 * 1_048_576 };

/** The versions of all matching events, read page by page, and the size of each page. */
async function readAll(wanted: Partial<Omit<Parameters<typeof listEvents>[1], 'after'>>) {
  const versions: number[] = [];
  const pages: { bytes: number; events: number }[] = [];
  let after: string | null = null;
  for (let hasMore = true; hasMore;) {
    const page: EventPage<number> = await listEvents(
      database.db,
      { ...query, ...wanted, after },
      {},
      (event) => event.streamVersion,
    );
    versions.push(...page.items);
    pages.push({ bytes: page.bytes, events: page.items.length });
    after = page.nextAfter;
    ({ hasMore } = page);
  }
  return { versions, pages };
}

describe('pages of events', () => {
  test('give every event once and in order, and have no more bytes than they may, unless one event has more', async () => {
    let round = 0;
    const sizes = fc.array(fc.integer({ min: 0, max: 3_000 }), { minLength: 1, maxLength: 12 });
    await fc.assert(
      fc.asyncProperty(
        sizes,
        fc.integer({ min: 1, max: 5_000 }),
        fc.integer({ min: 1, max: 5 }),
        fc.constantFrom(null, 'prompt.updated', 'prompt.created', 'key.created'),
        fc.boolean(),
        async (eventSizes, bytesMax, limit, type, byStream) => {
          round += 1;
          const workspaceId = `ws_pages_${round}`;
          const stream = `prompt_pages_${round}`;
          await insertPrompt(stream, eventSizes, workspaceId);
          const wanted = { workspaceId, stream: byStream ? stream : null, type, limit, bytesMax };
          const { versions, pages } = await readAll(wanted);
          expect(pages.every(({ bytes, events }) => bytes <= bytesMax || events === 1)).toBe(true);
          const matching = eventSizes.flatMap((_size, index) => {
            const own = index === 0 ? 'prompt.created' : 'prompt.updated';
            return type === null || type === own ? [index + 1] : [];
          });
          expect(versions).toEqual(matching);
        },
      ),
      { numRuns: 25 },
    );
  });

  test('have at most 4 MiB where nothing else is asked for', async () => {
    await insertPrompt(
      'prompt_large',
      Array.from({ length: 20 }, () => 262_144),
    );
    const bytes = (events: readonly { data: object }[]): number =>
      events.reduce((sum, { data }) => sum + JSON.stringify(data).length, 0);
    expect(bytes(await readStream(database.db, 'prompt_large'))).toBeLessThanOrEqual(4 * 1_048_576);
    expect(bytes(await readClosed(database.db, logStart, 1_000))).toBeLessThanOrEqual(4 * 1_048_576);
    const { versions, pages } = await readAll({ stream: 'prompt_large' });
    expect(versions).toEqual(Array.from({ length: 20 }, (_value, index) => index + 1));
    expect(pages.map(({ events }) => events)).toEqual([15, 5]);
  });
});

const longLog = insertEventSql(
  {
    workspace_id: "'ws_long'",
    stream_id: "'prompt_long_' || (number % 50)",
    stream_version: 'number / 50 + 1',
    type: "'prompt.updated'",
  },
  'from generate_series(0, 29999) as number',
);

test('the events of one record are found by its stream, wherever the page begins and however long the log is', async () => {
  await database.pool.query(longLog);
  await sql`analyze event`.execute(database.db);
  const { rows } = await sql<{ id: string; stream: string }>`
    select event_id as id, stream_id as stream from event where workspace_id = 'ws_long' and stream_version = 590`.execute(
    database.db,
  );
  const idIn = (wanted: string): string => rows.find(({ stream }) => stream === wanted)?.id ?? '';
  const read = await database.db.connection().execute(async (connection) => {
    const rowsRead = async (): Promise<number> => {
      await sql`select pg_stat_force_next_flush()`.execute(connection);
      const { rows: counted } = await sql<{ rows: number }>`
        select sum(idx_tup_read)::int + (select seq_tup_read::int from pg_stat_user_tables where relname = 'event') as rows
        from pg_stat_user_indexes where relname = 'event'`.execute(connection);
      return counted[0]?.rows ?? 0;
    };
    const before = await rowsRead();
    for (const [after, first] of [
      [null, 1],
      [idIn('prompt_long_7'), 591],
      [idIn('prompt_long_6'), 590],
    ] as const) {
      const wanted = {
        ...query,
        workspaceId: 'ws_long',
        stream: 'prompt_long_7',
        after,
        limit: 5,
        bytesMax: 1_000_000,
      };
      const page = await listEvents(connection, wanted, {}, (event) => event.streamVersion);
      expect(page.items[0]).toBe(first);
    }
    return (await rowsRead()) - before;
  });
  expect(read).toBeLessThan(200);
});

test('a large page of events is read and counted in slices', async () => {
  await insertPrompt(
    'prompt_slices',
    Array.from({ length: 8 }, () => 200_000),
  );
  const slices: number[] = [];
  const spend = async (bytes: number): Promise<void> => void slices.push(bytes);
  const wanted = { ...query, stream: 'prompt_slices', spend };
  const { bytes } = await listEvents(database.db, wanted, {}, (event) => event.streamVersion);
  expect(slices).toHaveLength(8);
  expect(slices.reduce((sum, size) => sum + size, 0)).toBe(bytes);
});

test('a page of versions is as large as it may be, and says that there are more', async () => {
  await sql`
    insert into resource_version (id, resource_id, kind, workspace_id, number, data, created_at, version, updated_at)
    select 'prompt_v@' || number, 'prompt_v', 'prompt', 'ws_1', number, jsonb_build_object('string', repeat('x', 262144)),
      clock_timestamp(), number, clock_timestamp()
    from generate_series(1, 40) as number`.execute(database.db);
  const page = { workspaceId: 'ws_1', skip: 0, limit: 100 };
  const newest = await listVersions(database.db, { id: 'prompt_v' } as never, { ...page, after: null });
  expect(newest.rows.map(({ number }) => number)).toEqual(Array.from({ length: 15 }, (_value, index) => 40 - index));
  expect(newest).toMatchObject({ total: 40, isCut: true });
  expect(newest.bytes).toBeLessThanOrEqual(4 * 1_048_576);
  const oldest = await listVersions(database.db, { id: 'prompt_v' } as never, { ...page, after: 'prompt_v@11' });
  expect(oldest).toMatchObject({ isCut: false });
  expect(oldest.rows).toHaveLength(10);
});

describe('replays of a record with large versions', () => {
  beforeAll(() =>
    insertPrompt(
      'prompt_replayed',
      Array.from({ length: 60 }, () => 262_144),
    ),
  );

  test('never hold more than the memory budget, however many run at once, and each gives the newest state', async () => {
    const memory = createMemoryBudget(64 * 1_048_576);
    const turns = createTurns({ runningMax: 2, waitingMax: 16 }, 'replays');
    const replays = createPageReads({ memory, bytesMax: 4 * 1_048_576, turns });
    const held: number[] = [];
    const app = createHttpApp({
      routes: [replayEvents({ db: database.db, replays })],
      authenticate: () => caller,
      logger: createLogger({ name: 'test', level: 'silent' }),
    });
    const server = app.listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const { port } = server.address() as { port: number };
    const watch = setInterval(() => held.push(memory.stats().heldBytes), 1);
    const answers = await Promise.all(
      Array.from({ length: 3 }, async () => {
        const response = await fetch(`http://127.0.0.1:${port}/v1/events/replay?stream=prompt_replayed`);
        return (await response.json()) as { version: number; state: { string: string } };
      }),
    );
    clearInterval(watch);
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
    expect(answers.map(({ version, state }) => [version, state.string.length])).toEqual(
      Array.from({ length: 3 }, () => [60, 262_144]),
    );
    // One replay of the workspace at a time, with what others have not sent yet.
    expect(Math.max(...held)).toBeGreaterThan(4 * 1_048_576);
    expect(Math.max(...held)).toBeLessThanOrEqual(32 * 1_048_576);
    expect(memory.stats().heldBytes).toBe(0);
  });
});

const caller = {
  workspaceId: 'ws_1',
  keyId: 'key_1',
  principal: { type: 'service_key', id: 'key_1', role: null },
  scopes: 'all',
  defaults: { configId: null, allowsConfigOverride: true, metadata: null },
  expiresAtMs: Number.POSITIVE_INFINITY,
} as const;
