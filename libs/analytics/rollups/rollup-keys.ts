import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { utcDay } from '#libs/request-log/row/log-id.ts';
import { sessionKey } from '#libs/request-log/read/call-conditions.ts';
import { grainMs, userKey } from '../aggregate-calls.ts';
import type { RowsAndPacks } from '../call-columns.ts';

/**
 * The maximum of metadata keys for which a workspace has rollups, in addition to `_user` and `_session`: the first that its calls had.
 */
export const rollupKeysMax = 8;
const keyLengthMax = 128;
/** A key that no call had for this long makes room for another one. */
const unseenMs = 30 * grainMs.day;
/** The key of a row which records that a key was refused. */
const refusedKey = '';

/**
 * Admits the metadata keys of the calls in these rows and packs to rollups, as far as their workspaces have room; the most
 * frequent keys come first. Until a workspace has refused a key, rollups contain every call with any of its keys. After
 * that, earlier calls are not known, and a key has rollups from the next hour on.
 */
export async function admitKeys(tx: Kysely<Database>, { rows, packs }: RowsAndPacks, nowMs: number): Promise<void> {
  const today = utcDay(nowMs);
  const nextHour = new Date((Math.floor(nowMs / grainMs.hour) + 1) * grainMs.hour);
  await sql`
    with found as materialized (
      select workspace_id, entry.key, sum(calls) as calls
      from (
        select workspace_id, metadata, 1 as calls from request_log_row
        where ${rows} and jsonb_typeof(metadata) = 'object'
        union all
        select workspace_id, metadata, lines from request_log_pack
        where ${packs} and jsonb_typeof(metadata) = 'object'
      ) as call cross join lateral jsonb_object_keys(metadata) as entry (key)
      where entry.key not in (${refusedKey}, ${sessionKey}) and length(entry.key) <= ${keyLengthMax}
      group by 1, 2
    ), seen as (
      update rollup_key set seen_on = ${today}::date from found
      where rollup_key.workspace_id = found.workspace_id and rollup_key.key = found.key and seen_on < ${today}::date
    ), placed as (
      select workspace_id, key, row_number() over (
          partition by workspace_id, key <> ${userKey} order by calls desc, key
        ) + (
          select count(*) from rollup_key as kept
          where kept.workspace_id = found.workspace_id and kept.key not in (${userKey}, ${refusedKey})
        ) as place
      from found where not exists (
        select from rollup_key as kept where kept.workspace_id = found.workspace_id and kept.key = found.key)
    )
    insert into rollup_key (workspace_id, key, from_at, seen_on)
    select workspace_id, key, case when key <> ${userKey} and exists (
        select from rollup_key as refused where refused.workspace_id = placed.workspace_id and refused.key = ${refusedKey}
      ) then ${nextHour}::timestamptz else '-infinity' end, ${today}::date
    from placed where key = ${userKey} or place <= ${rollupKeysMax}
    union all
    select distinct workspace_id, ${refusedKey}, '-infinity'::timestamptz, ${today}::date
    from placed where key <> ${userKey} and place > ${rollupKeysMax}
    on conflict do nothing`.execute(tx);
}

/**
 * The times (epoch milliseconds) since which calls of a workspace are rolled up by each metadata key. Other keys have
 * no rollups.
 */
export async function readRollupKeys(
  db: Kysely<Database>,
  workspaceId: string | null,
): Promise<ReadonlyMap<string, number>> {
  const { rows } = await sql<{ key: string; fromMs: number }>`
    select key, greatest(extract(epoch from from_at), 0)::float8 * 1000 as "fromMs"
    from rollup_key where workspace_id = ${workspaceId} and key <> ${refusedKey}`.execute(db);
  return new Map([...rows.map(({ key, fromMs }) => [key, fromMs] as const), [userKey, 0]]);
}

/** Removes keys that are no longer used, so that others can be admitted. Their remaining rollups are not read again. */
export async function forgetUnusedKeys(db: Kysely<Database>, nowMs: number): Promise<void> {
  await sql`
    with forgotten as (
      delete from rollup_key where key not in (${userKey}, ${refusedKey}) and seen_on < ${utcDay(nowMs - unseenMs)}::date
      returning workspace_id
    )
    insert into rollup_key (workspace_id, key, from_at, seen_on)
    select distinct workspace_id, ${refusedKey}, '-infinity'::timestamptz, ${utcDay(nowMs)}::date from forgotten
    on conflict do nothing`.execute(db);
}
