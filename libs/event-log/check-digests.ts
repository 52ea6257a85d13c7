import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { currentEpoch } from './epoch.ts';
import { erasureType } from './erase-events.ts';

/** `subject`: the ID of an event, or of the stream that lacks one. */
type LogFinding = { subject: string; message: string };

/** The numbers of events, and a description of the first wrong ones. */
export type LogCheck = { checked: number; changed: number; missing: number; findings: LogFinding[] };

const shownMax = 20;

const isChanged = sql`(
  sha256 is distinct from sha256(convert_to(event_envelope(event), 'UTF8'))
  or recorded_at <> date_trunc('milliseconds', recorded_at)
  or bytes is distinct from octet_length(data::text) + octet_length(metadata::text))`;

/** What remains of erased events, according to the newest event that records their erasure. */
const erasures = sql`
  select distinct on (erased.event_id) erased.* from event as record, json_to_recordset(record.data -> 'events')
    as erased (event_id uuid, data_sha256 text, metadata_sha256 text)
  where type = ${erasureType} order by erased.event_id, position desc`;

/** An erasure that is not recorded, or that erased more than it recorded. */
const isWronglyErased = sql`(
  data_salt is null
    and erasure.data_sha256 is distinct from encode(sha256(convert_to(data::text, 'UTF8')), 'hex')
  or metadata_salt is null
    and erasure.metadata_sha256 is distinct from encode(sha256(convert_to(metadata::text, 'UTF8')), 'hex'))`;

const log = sql`event left join (${erasures}) as erasure using (event_id)`;

/**
 * The hash does not cover the position of an event in the log. In the current epoch, a row still has the
 * transaction that inserted it in xmin, unless it was erased. Restoring a dump changes xmin and starts an epoch.
 */
const isMoved = sql`
  case when epoch = ${currentEpoch} then transaction_id::xid is distinct from event.xmin and data_salt is not null and metadata_salt is not null
    else recorded_at > coalesce((select min(raised_at) from event_epoch where event_epoch.epoch > event.epoch), '-infinity') end`;

/**
 * Compares all events with the SHA-256 that was stored with them, and finds events that are
 * missing: from the middle of a stream, or after the last version that `tables` have a row of. Reads the whole log in
 * the database. A forger who can change all of these tables consistently is not found.
 */
export async function checkDigests(db: Kysely<Database>, tables: readonly (keyof Database)[]): Promise<LogCheck> {
  const { rows } = await sql<{ checked: number; changed: number }>`
    select count(*)::float8 as checked, count(*) filter (where ${isChanged} or ${isWronglyErased} or ${isMoved})::float8 as changed
    from ${log}`.execute(db);
  const { checked = 0, changed = 0 } = rows[0] ?? {};
  const changes = changed === 0 ? [] : await findChanged(db);
  const gaps = [await findInStreams(db)];
  for (const table of tables) gaps.push(await findAfterStreams(db, table));
  const missing = gaps.reduce((sum, gap) => sum + gap.missing, 0);
  return { checked, changed, missing, findings: [...changes, ...gaps.flatMap(({ findings }) => findings)] };
}

async function findChanged(db: Kysely<Database>): Promise<LogFinding[]> {
  const { rows } = await sql<{ id: string; place: string; isChanged: boolean; isErased: boolean }>`
    select event_id as id, ${place} as place, ${isChanged} as "isChanged", ${isWronglyErased} as "isErased" from ${log}
    where ${isChanged} or ${isWronglyErased} or ${isMoved} order by position limit ${shownMax}`.execute(db);
  return rows.map(({ id, place, isChanged, isErased }) => {
    const moved = 'the event was moved in the log, or the log was restored without `sluice restore`';
    const erased = isErased ? 'more of the event was erased than recorded' : moved;
    const message = isChanged ? 'the event was changed after it was recorded' : erased;
    return { subject: id, message: `${message} (${place})` };
  });
}

const place = sql<string>`format('%s version %s, position %s', stream_id, stream_version, position)`;

type Gaps = { missing: number; findings: LogFinding[] };

/** Events that are missing before another one of their stream, and events whose place or time is before that of the previous one. */
async function findInStreams(db: Kysely<Database>): Promise<Gaps> {
  type Row = { id: string; place: string; missing: number; isEarlier: boolean; stream: string; total: number };
  const { rows } = await sql<Row>`
    select event_id as id, ${place} as place, missing, "isEarlier", stream_id as stream,
      sum(greatest(missing, 0)) over ()::float8 as total
    from (
      select *, stream_version - 1 - lag(stream_version, 1, 0) over stream as missing,
        (epoch, transaction_id, position)
          <= (lag(epoch) over stream, lag(transaction_id) over stream, lag(position) over stream) as "isEarlier",
        recorded_at < lag(recorded_at) over stream as "isBackDated"
      from (
        select event_id, stream_id, stream_version, epoch, transaction_id, position, recorded_at from event
      ) as event window stream as (partition by stream_id order by stream_version)
    ) as event where missing <> 0 or "isEarlier" or "isBackDated" order by position limit ${shownMax}`.execute(db);
  return {
    missing: rows[0]?.total ?? 0,
    findings: rows.map(({ id, place, missing, isEarlier, stream }) => {
      if (missing !== 0)
        return { subject: stream, message: `${describe(missing)} missing before event ${id} (${place})` };
      const what = isEarlier ? 'is earlier in the log' : 'has an earlier time';
      return { subject: id, message: `the event ${what} than the previous one of its stream (${place})` };
    }),
  };
}

/** Events that are missing at the end of a stream, or all of it. */
async function findAfterStreams(db: Kysely<Database>, table: keyof Database): Promise<Gaps> {
  const { rows } = await sql<{ stream: string; missing: number; total: number }>`
    select id as stream, version - newest as missing, sum(version - newest) over ()::float8 as total
    from ${sql.table(table)} as model cross join lateral (
      select coalesce(max(stream_version), 0) as newest from event where stream_id = model.id
    ) as stream
    where version > newest order by id limit ${shownMax}`.execute(db);
  return {
    missing: rows[0]?.total ?? 0,
    findings: rows.map(({ stream, missing }) => ({
      subject: stream,
      message: `${describe(missing)} missing at the end, according to the table ${table}`,
    })),
  };
}

const describe = (count: number): string => (count === 1 ? '1 event is' : `${count} events are`);
