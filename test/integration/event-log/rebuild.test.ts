import { sql } from 'kysely';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { decideBatch, isTerminal, type BatchCommand, type BatchOutcome } from '#libs/batches/batch/batch.ts';
import { batchModel, type BatchRow } from '#libs/batches/batch/batch-model.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import type { AnyInlineModel } from '#libs/event-log/inline-model.ts';
import { logStart, readClosed } from '#libs/event-log/read-events.ts';
import { checkInlineModels, rebuildInlineModels } from '#libs/event-log/rebuild.ts';
import { createPool } from '#libs/database/pool.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { fileModel } from '#libs/files/file-model.ts';
import { resourceModel, resourceVersionModel } from '#libs/records/resource-model.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { insertEventSql } from '#test/insert-event.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { batchCreated, batchValidated, chunkRedelivered, commandOn, fileUploaded } from './streams.ts';

const models = [batchModel, fileModel] as unknown as AnyInlineModel[];
const logger = createLogger({ name: 'test', level: 'silent' });
let database: TestDatabase;
let eventLog: EventLog;

beforeEach(async () => {
  database = await createTestDatabase();
  eventLog = createEventLog(database.db);
});
afterEach(async () => {
  await database.drop();
});

function seededRandom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** What users and providers may write, and COPY and JSON must carry. */
const oddTexts = [
  '\\N',
  '\\.',
  'tab\there',
  'line\nbreak\r',
  'back\\slash "quote"',
  'ünï😀',
  '',
  ' ',
  '{"json":[1]}',
  'null',
];

/** Lets a batch live by its own rules: commands drawn at random, decided on its row, to some state or its end. */
async function liveBatch(id: string, random: (below: number) => number): Promise<void> {
  const odd = (): string => oddTexts[random(oddTexts.length)] as string;
  const outcome: BatchOutcome = {
    output_file_id: random(2) === 0 ? null : 'file-out',
    output_sha256: null,
    error_file_id: random(2) === 0 ? null : 'file-err',
    error_sha256: null,
    total: 20,
    completed: 0,
    failed: 0,
  };
  const metadata = random(2) === 0 ? null : { [odd()]: odd() };
  await eventLog.transact(commandOn(id), (unit) =>
    unit.append(batchModel, id, [
      batchCreated({ metadata, headers: { trace: odd() }, gateway_options: { a: [odd(), null] } }),
    ]),
  );
  for (let step = 0; step < 12; step += 1) {
    const row = await eventLog.transact(commandOn(id), async (unit) => {
      const before = (await unit.load(batchModel, id)) as BatchRow;
      const command = drawCommand(before, random, odd, outcome);
      const late = random(20) === 0 ? new Date('2031-01-01') : unit.now;
      const refused = command.type === 'cancel' && before.status === 'finalizing';
      return await unit.append(batchModel, id, refused ? [] : decideBatch(before, command, late));
    });
    if (isTerminal(row.status)) return;
  }
}

function drawCommand(
  row: BatchRow,
  random: (below: number) => number,
  odd: () => string,
  outcome: BatchOutcome,
): BatchCommand {
  const left = row.total - row.completed - row.failed;
  const completed = Math.min(left, random(6));
  const failed = Math.min(left - completed, random(3));
  const usage = { input_tokens: random(1e9), cached_tokens: 0, output_tokens: 3, reasoning_tokens: 1 };
  const settled = {
    chunks: [],
    completed,
    failed,
    usage: [
      { provider: 'openai', model: odd(), cost: null, price_version: null, unpriced_lines: 1 + random(3), ...usage },
      { provider: 'openai', model: odd(), cost: `${random(1e9)}.${random(1e9)}1`, price_version: 'v1', ...usage },
    ].slice(random(2), 1 + random(2)),
    results_root: 'aa',
  };
  const errors = [{ code: 'invalid', message: odd(), param: null, line: 3 }];
  const commands: BatchCommand[] = [
    { type: 'finish_validation', lineCount: 20, chunkCount: 2, model: random(2) === 0 ? null : odd() },
    { type: 'settle', settled, openChunks: random(2) },
    { type: 'settle', settled, openChunks: 1 },
    { type: 'record_redelivery', chunk: 1, attempt: 2, unsettled: 3 },
    { type: 'close', openChunks: random(2) },
    { type: 'finish', outcome },
    random(4) === 0 ? { type: 'cancel' } : { type: 'settle', settled, openChunks: 1 },
    random(8) === 0 ? { type: 'fail_validation', errors } : { type: 'settle', settled, openChunks: 1 },
  ];
  return commands[random(commands.length)] as BatchCommand;
}

async function liveFile(id: string, random: (below: number) => number): Promise<void> {
  const filename = oddTexts[random(oddTexts.length)] as string;
  const expires_at = random(2) === 0 ? null : '2027-01-02T03:04:05.678Z';
  const upload = fileUploaded({ filename, bytes: 2 ** 40 + random(1000), expires_at });
  await eventLog.transact(commandOn(id), (unit) => unit.append(fileModel, id, [upload]));
  const end = random(3);
  if (end === 0) return;
  const type = end === 1 ? 'file.deleted' : 'file.expired';
  await eventLog.transact(commandOn(id), (unit) => unit.append(fileModel, id, [{ type, data: {} }]));
}

async function writeHistory(streams: number): Promise<void> {
  const random = seededRandom(7);
  for (let index = 0; index < streams; index += 1) {
    await liveBatch(`batch_${String(index).padStart(3, '0')}`, random);
    await liveFile(`file-${String(index).padStart(3, '0')}`, random);
  }
}

describe('the check', () => {
  test('finds the live rows of a lawful history equal, in all states and with any text', async () => {
    await writeHistory(60);
    const heard: number[] = [];
    const report = await checkInlineModels(database.pool, models, (events) => heard.push(events));
    expect(report).toMatchObject({ difference: null, rows: { batch: 60, file: 60 } });
    const statuses = await database.db.selectFrom('batch').select('status').distinct().execute();
    expect(statuses.length).toBeGreaterThanOrEqual(6); // else the history shows little
    const { events } = await database.db
      .selectFrom('event')
      .select((of) => of.fn.countAll<number>().as('events'))
      .executeTakeFirstOrThrow();
    expect(report.events).toBe(events);
    expect(heard.at(-1)).toBe(events);
  });

  test('folds streams over several connections, each once, however the log is cut', async () => {
    await writeHistory(150);
    await database.pool.query('analyze event');
    const used = new Set<unknown>();
    const watched = {
      options: database.pool.options,
      connect: async () => {
        const client = await database.pool.connect();
        const query = client.query.bind(client);
        client.query = ((text: string, ...rest: []) => {
          if (text.includes('stream_version limit')) used.add(client);
          return query(text, ...rest);
        }) as typeof client.query;
        return client;
      },
    } as typeof database.pool;
    const report = await checkInlineModels(watched, models);
    expect(report).toMatchObject({ difference: null, rows: { batch: 150, file: 150 } });
    const { rows } = await database.pool.query('select count(*)::int as events from event');
    expect(report.events).toBe(rows[0].events);
    expect(used.size).toBeGreaterThan(1);
  });

  test('works with a pool of one connection', async () => {
    await writeHistory(5);
    const single = createPool({ connectionString: database.connectionString, applicationName: 'one', max: 1 }, logger);
    onTestFinished(() => single.end());
    expect(await checkInlineModels(single, models)).toMatchObject({ difference: null, rows: { batch: 5, file: 5 } });
    expect(await rebuildInlineModels(single, models)).toMatchObject({ difference: null, rows: { batch: 5, file: 5 } });
  });

  test('finds an empty log and empty models equal', async () => {
    expect(await checkInlineModels(database.pool, models)).toMatchObject({
      events: 0,
      rows: { batch: 0, file: 0 },
      difference: null,
    });
  });

  test('finds rows equal that are written while it reads', async () => {
    await writeHistory(20);
    const done = new AbortController();
    const writer = (async () => {
      for (let turn = 0; !done.signal.aborted; turn += 1) {
        const id = `batch_live_${turn % 5}`;
        await eventLog.transact(commandOn(id), (unit) =>
          unit.append(batchModel, id, turn < 5 ? [batchCreated(), batchValidated(10)] : [chunkRedelivered(turn)]),
        );
      }
    })();
    try {
      for (let turn = 0; turn < 5; turn += 1) {
        expect((await checkInlineModels(database.pool, models)).difference).toBeNull();
      }
    } finally {
      done.abort();
      await writer;
    }
  });

  test('holds back no subscriber of the log while it runs', async () => {
    await writeHistory(3);
    const reached = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const pausing = {
      options: database.pool.options,
      connect: async () => {
        const client = await database.pool.connect();
        const query = client.query.bind(client);
        // At the end of its transaction, when it has done all that it does.
        client.query = ((text: string, ...rest: []) => {
          if (text !== 'rollback') return query(text, ...rest);
          reached.resolve();
          return goOn.promise.then(() => query(text));
        }) as typeof client.query;
        return client;
      },
    } as typeof database.pool;
    const checking = checkInlineModels(pausing, models);
    await reached.promise;
    try {
      await eventLog.transact(commandOn('batch_during'), (unit) =>
        unit.append(batchModel, 'batch_during', [batchCreated()]),
      );
      // Other databases of the server have transactions too, which end.
      await eventually(
        () => readClosed(database.db, logStart, 10_000),
        (events) => events.some(({ streamId }) => streamId === 'batch_during'),
        { timeoutMs: 10_000 },
      );
    } finally {
      goOn.resolve();
    }
    expect((await checking).difference).toBeNull();
  });

  test('changes nothing', async () => {
    await writeHistory(5);
    const before = await database.db.selectFrom('batch').selectAll().orderBy('id').execute();
    await checkInlineModels(database.pool, models);
    await checkInlineModels(database.pool, models);
    expect(await database.db.selectFrom('batch').selectAll().orderBy('id').execute()).toEqual(before);
  });
});

const damages = [
  {
    name: 'a number altered by hand',
    statement: "update batch set completed = completed + 1, total = total + 1 where id = 'batch_003'",
    id: 'batch_003',
  },
  {
    name: 'a text in jsonb altered by hand',
    statement: `update batch set headers = '{"trace":"else"}' where id = 'batch_004'`,
    id: 'batch_004',
  },
  {
    name: 'a time altered by a millisecond',
    statement: "update batch set created_at = created_at + interval '1 millisecond' where id = 'batch_005'",
    id: 'batch_005',
  },
  {
    name: 'a value taken out',
    statement: "update file set expires_at = null, sha256 = '' where id = 'file-002'",
    id: 'file-002',
  },
  {
    name: 'a version altered',
    statement: "update file set version = version + 1 where id = 'file-001'",
    id: 'file-001',
  },
  { name: 'a row deleted', statement: "delete from file where id = 'file-003'", id: 'file-003' },
  {
    name: 'a row invented',
    statement:
      "insert into file select 'file-000a', workspace_id, version, updated_at, purpose, filename, bytes, sha256, blob, created_at from file where id = 'file-001'",
    id: 'file-000a',
  },
  { name: 'all rows deleted', statement: 'delete from batch', id: 'batch_000' },
];

describe.each(damages)('$name', ({ statement, id }) => {
  test('is named by the check with both rows, is repaired by the rebuild, and is gone then', async () => {
    await writeHistory(6);
    const before = await sql`select * from batch, file order by batch.id, file.id`.execute(database.db);
    await database.pool.query(statement);

    const model = id.startsWith('batch') ? 'batch' : 'file';
    const { rows } = await database.pool.query(`select to_jsonb(${model}) as row from ${model} where id = $1`, [id]);
    const found = await checkInlineModels(database.pool, models);
    expect(found.difference).toMatchObject({ model, id, live: rows[0]?.row ?? null });
    expect(found.difference?.folded).not.toEqual(found.difference?.live);

    const repaired = await rebuildInlineModels(database.pool, models);
    expect(repaired.difference).toEqual(found.difference);
    expect((await sql`select * from batch, file order by batch.id, file.id`.execute(database.db)).rows).toEqual(
      before.rows,
    );
    expect((await checkInlineModels(database.pool, models)).difference).toBeNull();
    expect((await rebuildInlineModels(database.pool, models)).difference).toBeNull();
  });
});

test('of several differences the first is named, by model and then by id', async () => {
  await writeHistory(4);
  await database.pool.query("update batch set model = 'x' where id in ('batch_002', 'batch_001')");
  await database.pool.query("delete from file where id = 'file-000'");
  expect((await checkInlineModels(database.pool, models)).difference).toMatchObject({
    model: 'batch',
    id: 'batch_001',
  });
});

test('commands go on after a rebuild from where the rows were', async () => {
  await writeHistory(1);
  await eventLog.transact(commandOn('batch_x'), (unit) => unit.append(batchModel, 'batch_x', [batchCreated()]));
  await database.pool.query('delete from batch');
  await rebuildInlineModels(database.pool, models);
  const row = await eventLog.transact(commandOn('batch_x'), (unit) =>
    unit.append(batchModel, 'batch_x', [batchValidated(10), chunkRedelivered(1)]),
  );
  expect(row).toMatchObject({ version: 3, total: 10, status: 'in_progress' });
  expect((await checkInlineModels(database.pool, models)).difference).toBeNull();
});

test('while a rebuild runs, writers continue, and what they write to wrong rows is right afterwards', async () => {
  await writeHistory(10);
  await database.pool.query("update batch set model = 'x'");
  let appended = 0;
  const rebuilding = rebuildInlineModels(database.pool, models);
  const writing = (async () => {
    for (; appended < 40; appended += 1) {
      // Streams of which the row is wrong, and new ones.
      const id = appended % 2 === 0 ? `batch_w${appended}` : `batch_00${appended % 10}`;
      const events = appended % 2 === 0 ? [batchCreated(), batchValidated(1)] : [chunkRedelivered(1)];
      await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, events));
    }
  })();
  await Promise.all([rebuilding, writing]);
  expect(appended).toBe(40);
  expect((await checkInlineModels(database.pool, models)).difference).toBeNull();
});

test('a rebuild waits only for the writers of wrong rows', async () => {
  await writeHistory(2);
  await database.pool.query("update batch set model = 'x' where id = 'batch_001'");
  const release = Promise.withResolvers<void>();
  const held = eventLog.transact(commandOn('batch_000'), async (unit) => {
    await unit.append(batchModel, 'batch_000', [chunkRedelivered(1)]);
    await release.promise;
  });
  expect((await rebuildInlineModels(database.pool, models)).difference).toMatchObject({ id: 'batch_001' });
  release.resolve();
  await held;
  expect((await checkInlineModels(database.pool, models)).difference).toBeNull();
});

test('rows that have a unique value of each other are repaired, however far apart they are', async () => {
  const resources = resourceModel(resourceKinds);
  const kinds = [resources, resourceVersionModel(resourceKinds)] as unknown as AnyInlineModel[];
  const ids = Array.from({ length: 250 }, (_each, index) => `label_${String(index).padStart(3, '0')}`);
  for (const id of ids) {
    const created = { type: 'label.created', data: { slug: id, name: id } };
    await eventLog.transact(commandOn(id), (unit) => unit.append(resources, id, [created]));
  }
  await database.pool.query(`
    update resource set slug = 'away' where id = 'label_000';
    update resource set slug = 'label_000' where id = 'label_249';
    update resource set slug = 'label_249' where id = 'label_000';
    update resource set data = '{}'`);
  const { rows, difference } = await rebuildInlineModels(database.pool, kinds);
  expect({ rows, id: difference?.id }).toEqual({ rows: { resource: 250, resource_version: 0 }, id: 'label_000' });
  expect((await checkInlineModels(database.pool, kinds)).difference).toBeNull();
});

describe('a log that cannot be folded', () => {
  const members = { stream_id: '$1::text', stream_version: '$2::int', type: '$3::text' };
  const insert = insertEventSql(members);

  test('because a version is missing is refused, not papered over', async () => {
    await writeHistory(1);
    await eventLog.transact(commandOn('batch_gap'), (unit) => unit.append(batchModel, 'batch_gap', [batchCreated()]));
    await database.pool.query(insert, ['batch_gap', 3, 'batch.cancel_requested']);
    const message = 'stream batch_gap: expected version 2, the log has 3';
    await expect(checkInlineModels(database.pool, models)).rejects.toThrow(message);
    await expect(rebuildInlineModels(database.pool, models)).rejects.toThrow(message);
    expect(await database.db.selectFrom('batch').select('id').execute()).toHaveLength(2);
  });

  test('because nothing folds a type of event is refused by that name', async () => {
    await database.pool.query(insert, ['thing_1', 1, 'thing.happened']);
    await expect(checkInlineModels(database.pool, models)).rejects.toThrow('type thing.happened, which no model folds');
  });
});
