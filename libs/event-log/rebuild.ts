import type { Pool, PoolClient } from 'pg';
import { foldLog, type FoldedRow } from './fold-log.ts';
import type { AnyInlineModel } from './inline-model.ts';
import { toEvent } from './read-events.ts';
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
  const startedAt = performance.now();
  return await withClients(pool, async (client, folders) => {
    await client.query('begin isolation level repeatable read read only');
    await shareSnapshot(client, folders);
    let events = 0;
    const counts = new Map(models.map((model) => [model, { folded: 0, live: 0 }]));
    const differences = new Map<AnyInlineModel, Difference>();
    const note = (model: AnyInlineModel, found: Difference | null): void => {
      const known = differences.get(model);
      if (found && (!known || found.id < known.id)) differences.set(model, found);
    };
    for await (const { model, rows } of foldLog(folders, models, (count) => onProgress((events = count)))) {
      const compared = await compareRows(client, model, rows);
      const count = counts.get(model);
      if (count) {
        count.folded += rows.length;
        count.live += compared.live;
      }
      note(model, compared.difference);
    }
    for (const [model, { live }] of counts) {
      const { rows } = await client.query(`select count(*) as rows from ${model.name}`);
      if (rows[0].rows > live) note(model, await findInvented(client, model));
    }
    await client.query('rollback');
    return {
      events,
      rows: Object.fromEntries([...counts].map(([model, { folded }]) => [model.name, folded])),
      difference: models.map((model) => differences.get(model)).find((found) => found !== undefined) ?? null,
      durationMs: performance.now() - startedAt,
    };
  });
}

/**
 * Replaces the live rows of the inline models with a fold of the log, in one transaction that blocks writers. The
 * result has the form of a check: `difference` is the first row that was repaired, if any.
 */
export async function rebuildInlineModels(
  pool: Pool,
  models: readonly AnyInlineModel[],
  onProgress: (events: number) => void = () => {},
): Promise<CheckReport> {
  const startedAt = performance.now();
  return await withClients(pool, async (client, folders) => {
    await client.query('begin');
    // Readers continue. Writers wait, because every append upserts one of these rows.
    await client.query(`lock table ${models.map((model) => model.name).join(', ')} in exclusive mode`);
    await shareSnapshot(client, folders);
    for (const model of models) {
      await client.query(`create temp table ${foldTable(model)} (like ${model.name}) on commit drop`);
    }
    let events = 0;
    const counts: Record<string, number> = Object.fromEntries(models.map((model) => [model.name, 0]));
    for await (const { model, rows } of foldLog(folders, models, (count) => onProgress((events = count)))) {
      counts[model.name] = (counts[model.name] ?? 0) + rows.length;
      await client.query(`insert into ${foldTable(model)} select * from ${recordset(model)}`, [JSON.stringify(rows)]);
    }
    let difference: Difference | null = null;
    for (const model of models) {
      const found = await firstDifference(client, model);
      difference ??= found;
      if (!found) continue;
      await client.query(`delete from ${model.name}`);
      await client.query(`insert into ${model.name} select * from ${foldTable(model)}`);
    }
    await client.query('commit');
    return { events, rows: counts, difference, durationMs: performance.now() - startedAt };
  });
}

const foldTable = (model: AnyInlineModel): string => `fold_${model.name}`;

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

/** How many of the folded rows have a live one, and the first that differs from it. */
async function compareRows(
  client: PoolClient,
  model: AnyInlineModel,
  rows: readonly FoldedRow[],
): Promise<{ live: number; difference: Difference | null }> {
  const { rows: compared } = await client.query(
    `with pair as materialized (
       select folded.id, live.id is not null as is_live, to_jsonb(live) as live, to_jsonb(folded) as folded
       from ${recordset(model)} as folded left join ${model.name} as live on live.id = folded.id
     )
     select (select count(*) from pair where is_live) as is_live, different.id, different.live, different.folded
     from (select) as always
     left join lateral (select * from pair where live is distinct from folded order by id limit 1) as different on true`,
    [JSON.stringify(rows)],
  );
  const { is_live: live, id, live: liveRow, folded } = compared[0];
  return { live, difference: id === null ? null : { model: model.name, id, live: liveRow, folded } };
}

const idsAtOnce = 1_000;

/** The first live row for which the log has no events. */
async function findInvented(client: PoolClient, model: AnyInlineModel): Promise<Difference | null> {
  let after = '';
  for (;;) {
    const { rows: live } = await client.query(`select id from ${model.name} where id > $1 order by id limit $2`, [
      after,
      idsAtOnce,
    ]);
    const ids: string[] = live.map((row) => row.id);
    const folded = await foldedIds(client, model, ids);
    const invented = ids.find((id) => !folded.has(id));
    if (invented !== undefined) {
      const { rows } = await client.query(`select to_jsonb(${model.name}) as live from ${model.name} where id = $1`, [
        invented,
      ]);
      return { model: model.name, id: invented, live: rows[0].live, folded: null };
    }
    const last = ids.at(-1);
    if (last === undefined) return null;
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

async function firstDifference(client: PoolClient, model: AnyInlineModel): Promise<Difference | null> {
  const { rows } = await client.query(
    `select coalesce(live.id, folded.id) as id, to_jsonb(live) as live, to_jsonb(folded) as folded
     from ${model.name} as live full join ${foldTable(model)} as folded on live.id = folded.id
     where to_jsonb(live) is distinct from to_jsonb(folded)
     order by 1 limit 1`,
  );
  const row = rows[0];
  return row ? { model: model.name, id: row.id, live: row.live, folded: row.folded } : null;
}
