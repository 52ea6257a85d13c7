import { sql, type Kysely } from 'kysely';
import type { Pool, PoolClient } from 'pg';
import { getSqlState } from '#libs/database/database-error.ts';
import { createDatabase } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog } from './event-log.ts';
import { foldLog, type FoldedRow } from './fold-log.ts';
import type { AnyInlineModel } from './inline-model.ts';
import { toEvent } from './read-events.ts';
import { refoldStream } from './refold-stream.ts';
import { upcast } from './upcast.ts';

export type Difference = { model: string; id: string; live: unknown; folded: unknown };
export type CheckReport = {
  events: number;
  rows: Record<string, number>;
  difference: Difference | null;
  durationMs: number;
};

/**
 * Folds the whole log and compares the result with the live rows, inside one READ ONLY REPEATABLE READ transaction, so
 * that both are read from the same snapshot while writers continue. The transaction writes nothing, not even a
 * temporary table. It therefore has no transaction ID and does not delay subscribers, however long it takes. Returns
 * the first difference by model and ID. `onProgress` gets the number of events folded so far.
 */
export async function checkInlineModels(
  pool: Pool,
  models: readonly AnyInlineModel[],
  onProgress: (events: number) => void = () => {},
): Promise<CheckReport> {
  return (await compareWithLog(pool, models, onProgress)).report;
}

/**
 * Compares like a check, and replaces each row that differs by a fold of its stream, until none differs. Only writers of
 * the streams that are being replaced wait, each for a moment. The result has the form of a check: `difference` is the
 * first row that was repaired, if any.
 */
export async function rebuildInlineModels(
  pool: Pool,
  models: readonly AnyInlineModel[],
  onProgress: (events: number) => void = () => {},
): Promise<CheckReport> {
  const startedAt = performance.now();
  let repaired: Difference | null = null;
  for (let wasWhole = false; ;) {
    const { report, wrong, isWhole } = await compareWithLog(pool, models, onProgress);
    const { difference } = report;
    repaired ??= difference;
    if (difference === null) return { ...report, difference: repaired, durationMs: performance.now() - startedAt };
    if (wasWhole) throw new Error(`the row ${difference.id} of ${difference.model} still differs after its repair`);
    wasWhole = isWhole;
    await repairRows(createDatabase(pool), models, wrong);
  }
}

/**
 * Fills the tables of the inline models, which must be empty, with a fold of the log, in one transaction. Returns the
 * numbers of rows.
 */
export async function fillInlineModels(
  pool: Pool,
  models: readonly AnyInlineModel[],
  onProgress: (events: number) => void,
): Promise<Record<string, number>> {
  return await withClients(pool, async (client, folders) => {
    await client.query('begin');
    await shareSnapshot(client, folders);
    const counts: Record<string, number> = Object.fromEntries(models.map((model) => [model.name, 0]));
    for await (const { model, rows } of foldLog(folders, models, onProgress)) {
      counts[model.name] = (counts[model.name] ?? 0) + rows.length;
      await client.query(`insert into ${model.name} select * from ${recordset(model)}`, [JSON.stringify(rows)]);
    }
    await client.query('commit');
    return counts;
  });
}

/** Up to this many rows are repaired before the next comparison. Their IDs are in memory. */
const wrongRowsMax = 500_000;

/** `wrong`: the IDs of rows that differ, are missing or have no events. `isWhole`: there are no others. */
type Comparison = { report: CheckReport; wrong: Map<AnyInlineModel, string[]>; isWhole: boolean };

async function compareWithLog(
  pool: Pool,
  models: readonly AnyInlineModel[],
  onProgress: (events: number) => void,
): Promise<Comparison> {
  const startedAt = performance.now();
  return await withClients(pool, async (client, folders) => {
    await client.query('begin isolation level repeatable read read only');
    await shareSnapshot(client, folders);
    let [events, wrongRows] = [0, 0];
    const counts = new Map(models.map((model) => [model, { folded: 0, live: 0 }]));
    const differences = new Map<AnyInlineModel, Difference>();
    const wrong = new Map<AnyInlineModel, string[]>();
    const note = (model: AnyInlineModel, { ids, first }: Differing): void => {
      const known = differences.get(model);
      if (first && (!known || first.id < known.id)) differences.set(model, first);
      const list = wrong.get(model) ?? [];
      list.push(...ids.slice(0, Math.max(0, wrongRowsMax - wrongRows)));
      wrong.set(model, list);
      wrongRows += ids.length;
    };
    for await (const { model, rows } of foldLog(folders, models, (count) => onProgress((events = count)))) {
      const compared = await compareRows(client, model, rows);
      const count = counts.get(model);
      if (count) {
        count.folded += rows.length;
        count.live += compared.live;
      }
      note(model, compared);
    }
    for (const [model, { live }] of counts) {
      const { rows } = await client.query(`select count(*) as rows from ${model.name}`);
      if (rows[0].rows > live) for await (const invented of findInvented(client, model)) note(model, invented);
    }
    await client.query('rollback');
    const report = {
      events,
      rows: Object.fromEntries([...counts].map(([model, { folded }]) => [model.name, folded])),
      difference: models.map((model) => differences.get(model)).find((found) => found !== undefined) ?? null,
      durationMs: performance.now() - startedAt,
    };
    return { report, wrong, isWhole: wrongRows <= wrongRowsMax };
  });
}

/** Few, because their writers wait. */
const streamsAtOnce = 10;

/** Replaces these rows by folds of their streams. Rows whose stream has no events are deleted. */
async function repairRows(
  db: Kysely<Database>,
  models: readonly AnyInlineModel[],
  wrong: ReadonlyMap<AnyInlineModel, readonly string[]>,
): Promise<void> {
  const wrongRows = [...wrong].flatMap(([model, ids]) =>
    ids.map((id) => ({ model, id, stream: model.perEvent?.streamOf(id) ?? id })),
  );
  const byStream = Map.groupBy(wrongRows, ({ stream }) => stream);
  const eventLog = createEventLog(db);
  // Appends nothing, but locks the streams as an append does.
  const repair = (streams: readonly string[]): Promise<void> =>
    eventLog.transact(
      { workspaceId: '', streams, metadata: { actor: { type: 'system', id: 'cli' } } },
      async ({ tx }) => {
        const rows = streams.flatMap((stream) => byStream.get(stream) ?? []);
        for (const [{ name }, damaged] of Map.groupBy(rows, ({ model }) => model))
          await sql`delete from ${sql.table(name)} where id = any(${damaged.map(({ id }) => id)}::text[])`.execute(tx);
        for (const stream of streams) await refoldStream(tx, models, stream);
      },
    );
  const blocked: string[] = [];
  const streams = [...byStream.keys()];
  for (let from = 0; from < streams.length; from += streamsAtOnce) {
    const some = streams.slice(from, from + streamsAtOnce);
    try {
      await repair(some);
    } catch (error) {
      // A row that is not repaired yet has a unique value of one of these, such as a slug.
      if (getSqlState(error) !== '23505') throw error;
      blocked.push(...some);
    }
  }
  if (blocked.length > 0) await repair(blocked);
}

/** SQL for rows given as JSON, with the column types of the model's table. */
const recordset = (model: AnyInlineModel): string => `jsonb_populate_recordset(null::${model.name}, $1::jsonb)`;

/**
 * Connections for folding, in addition to the one that compares or writes. With more, this process's CPU is the
 * bottleneck.
 */
const foldersMax = 3;

/**
 * Runs work with separate sessions: one to compare or write with, and the rest of the pool, up to `foldersMax`, to fold
 * with. (If the pool has only one, it does both.) The sessions are closed afterwards, because their settings and
 * temporary tables must not reach the next user.
 */
async function withClients<Result>(
  pool: Pool,
  work: (client: PoolClient, folders: readonly PoolClient[]) => Promise<Result>,
): Promise<Result> {
  const wanted = Math.max(1, Math.min(foldersMax + 1, pool.options.max ?? 1));
  const connecting = await Promise.allSettled(Array.from({ length: wanted }, () => pool.connect()));
  const clients = connecting.filter((each) => each.status === 'fulfilled').map(({ value }) => value);
  try {
    const [client, ...folders] = clients;
    // More sessions only make it faster.
    if (!client) throw (connecting[0] as PromiseRejectedResult).reason;
    for (const each of clients) {
      // A large log takes longer than the timeouts that protect the live path.
      await each.query('set statement_timeout = 0');
      await each.query('set idle_in_transaction_session_timeout = 0');
      await each.query(
        "do $$ begin perform set_config('transaction_timeout', '0', false); exception when others then null; end $$",
      );
    }
    return await work(client, folders.length > 0 ? folders : [client]);
  } finally {
    for (const client of clients) client.release(true);
  }
}

/** Gives the folding sessions the snapshot of the client's transaction. This does not assign a transaction id. */
async function shareSnapshot(client: PoolClient, folders: readonly PoolClient[]): Promise<void> {
  const { rows } = await client.query('select pg_export_snapshot() as id');
  for (const folder of folders) {
    if (folder === client) continue;
    await folder.query('begin isolation level repeatable read read only');
    await folder.query(`set transaction snapshot '${rows[0].id}'`);
  }
}

type Differing = { ids: readonly string[]; first: Difference | null };

/** How many of the folded rows have a live one, and those that differ from it. */
async function compareRows(
  client: PoolClient,
  model: AnyInlineModel,
  rows: readonly FoldedRow[],
): Promise<Differing & { live: number }> {
  const { rows: compared } = await client.query(
    `with pair as materialized (
       select folded.id, live.id is not null as is_live, to_jsonb(live) as live, to_jsonb(folded) as folded
       from ${recordset(model)} as folded left join ${model.name} as live on live.id = folded.id
     ), different as materialized (select * from pair where live is distinct from folded)
     select (select count(*) from pair where is_live) as is_live,
       (select coalesce(array_agg(id), '{}') from different) as ids, first.id, first.live, first.folded
     from (select) as always left join lateral (select * from different order by id limit 1) as first on true`,
    [JSON.stringify(rows)],
  );
  const { is_live: live, ids, id, live: liveRow, folded } = compared[0];
  return { live, ids, first: id === null ? null : { model: model.name, id, live: liveRow, folded } };
}

const idsAtOnce = 1_000;

/** The live rows for which the log has no events, in the order of their IDs. */
async function* findInvented(client: PoolClient, model: AnyInlineModel): AsyncGenerator<Differing> {
  let after = '';
  for (;;) {
    const { rows: live } = await client.query(`select id from ${model.name} where id > $1 order by id limit $2`, [
      after,
      idsAtOnce,
    ]);
    const ids: string[] = live.map((row) => row.id);
    const folded = await foldedIds(client, model, ids);
    const invented = ids.filter((id) => !folded.has(id));
    const [id] = invented;
    if (id !== undefined) {
      const { rows } = await client.query(`select to_jsonb(${model.name}) as live from ${model.name} where id = $1`, [
        id,
      ]);
      yield { ids: invented, first: { model: model.name, id, live: rows[0].live, folded: null } };
    }
    const last = ids.at(-1);
    if (last === undefined) return;
    after = last;
  }
}

/** The ids of the model's rows according to the log, at least of those among `ids`. */
async function foldedIds(
  client: PoolClient,
  { perEvent, upcasts }: AnyInlineModel,
  ids: readonly string[],
): Promise<ReadonlySet<string>> {
  if (!perEvent) {
    const { rows } = await client.query(
      'select stream_id from event where stream_id = any($1::text[]) and stream_version = 1',
      [ids],
    );
    return new Set(rows.map((row) => row.stream_id));
  }
  const found = new Set<string>();
  for (const streamId of new Set(ids.map((id) => perEvent.streamOf(id)))) {
    const { rows } = await client.query('select * from event where stream_id = $1', [streamId]);
    for (const row of rows) found.add(perEvent.rowId(upcast(upcasts, toEvent(row)) as never) ?? '');
  }
  return found;
}
