import { sql, type Kysely, type RawBuilder, type Transaction } from 'kysely';
import pg from 'pg';
import { v7 as uuidv7 } from 'uuid';
import { hasHung, isTransient } from '#libs/database/database-error.ts';
import { beginningWith } from '#libs/database/pool.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { Database } from '#libs/database/schema.ts';
import { canonicalJson } from './canonical-json.ts';
import type { EventMetadata, NewEvent, RecordedEvent } from './event.ts';
import { foldEvent, rowValues, type AnyInlineModel, type InlineModel, type StreamRow } from './inline-model.ts';
import { currentVersion } from './upcast.ts';

/** One transaction over locked streams: load state, decide, append, project, enqueue. */
export type UnitOfWork = {
  tx: Transaction<Database>;
  /** The database's clock, read after the locks were acquired. Deadlines are compared with it. */
  now: Date;
  /** The read-model row of the stream, which is its state. Undefined when nothing was ever appended to the stream. */
  load<Row extends StreamRow, Event extends NewEvent>(
    model: InlineModel<Row, Event>,
    id: string,
  ): Promise<Row | undefined>;
  /**
   * Appends the events and writes the folded row, in one round trip, and returns the row. Without events it returns the
   * row unchanged. A new stream belongs to `workspaceId`, by default the workspace of the command.
   */
  append<Row extends StreamRow, Event extends NewEvent>(
    model: InlineModel<Row, Event>,
    id: string,
    events: readonly Event[],
    workspaceId?: string,
  ): Promise<Row>;
};

export type Command = {
  workspaceId: string;
  /** Every stream that the work loads or appends to. They are locked before anything else happens. */
  streams: readonly string[];
  /** The model of which most of `streams` have a row, read together with the clock. */
  model?: Pick<InlineModel<never, never>, 'name'>;
  /** Those of `streams` that begin with this command, so that they have no row to read. */
  newStreams?: readonly string[];
  /** A function gets the row of the stream before its events. */
  metadata: EventMetadata | ((before: StreamRow | undefined) => EventMetadata);
};

export type EventLog = {
  /**
   * Runs `work` in one short transaction that holds the locks of the streams. The whole of it is retried after a short
   * outage of the database (but not after a timeout, which has already taken seconds) and after a deadlock, so it must
   * not have side effects outside the transaction. If the reply to COMMIT is lost, the ids of the events, which are
   * created before the first try, show whether it succeeded.
   */
  transact<Result>(command: Command, work: (unit: UnitOfWork) => Promise<Result>): Promise<Result>;
};

const retryDelaysMs = [50, 200, 600, 1_500, 3_000];

export function createEventLog(db: Kysely<Database>): EventLog {
  return {
    async transact(command, work) {
      const streams = [...new Set(command.streams)].toSorted();
      const eventIds: string[] = [];
      let previous: { result: Awaited<ReturnType<typeof work>> } | undefined;
      const run = async (tx: Transaction<Database>) => {
        const opened = await readLocked(tx, command);
        if (previous && (await isCommitted(tx, eventIds[0]))) return previous.result;
        const result = await work(createUnit(tx, opened, command, streams, eventIds));
        previous = { result };
        return result;
      };
      const once = () => beginningWith(lockingStatement(streams), () => db.transaction().execute(run));
      return await retryDuringOutage(once, {
        isOutage: (error) => isTransient(error) && !hasHung(error),
        delayMs: (failures) => retryDelaysMs[failures - 1],
      });
    },
  };
}

/**
 * Acquires the advisory lock of every stream, in sorted order. This must be the first statement of the transaction. A
 * transaction id assigned before the lock could be lower than that of a transaction that held the lock earlier, and
 * subscribers, who read in the order of transaction ids, would see the events of a stream out of order.
 */
function lockingStatement(streams: readonly string[]): string {
  // No stream has the character NUL in its id, because Postgres cannot store it.
  const ids = streams.map((id) => pg.escapeLiteral(id.replaceAll('\0', '')));
  return `
    with locked as materialized (
      select pg_advisory_xact_lock(hashtextextended(stream_id, 0)) from unnest(array[${ids.join(', ')}]::text[]) as stream_id
    )
    select count(*) from locked`;
}

type Opened = { now: Date; rows: StreamRow[] };

/** Reads the clock, and the rows of the command's model, after its locks were acquired. */
async function readLocked(tx: Transaction<Database>, { model, streams }: Command): Promise<Opened> {
  const now = sql<{ now: Date }>`select date_trunc('milliseconds', clock_timestamp()) as now`;
  if (model === undefined) return { ...((await now.execute(tx)).rows[0] as { now: Date }), rows: [] };
  const { rows } = await sql<{ now: Date } & StreamRow>`
    select * from (${now}) as clock left join ${sql.table(model.name)} on id = any(${streams}::text[])`.execute(tx);
  const [first] = rows as [(typeof rows)[number]];
  return { now: first.now, rows: rows.map(({ now: _now, ...row }) => row).filter(({ id }) => id !== null) };
}

async function isCommitted(tx: Transaction<Database>, eventId: string | undefined): Promise<boolean> {
  if (eventId === undefined) return false;
  const row = await tx.selectFrom('event').select('position').where('event_id', '=', eventId).executeTakeFirst();
  return row !== undefined;
}

function createUnit(
  tx: Transaction<Database>,
  { now, rows: read }: Opened,
  command: Command,
  streams: readonly string[],
  eventIds: string[],
): UnitOfWork {
  const locked = new Set(streams);
  const rows = new Map<string, StreamRow | undefined>(command.newStreams?.map((id) => [id, undefined]));
  for (const row of read) rows.set(row.id, row);
  let appended = 0;
  const load: UnitOfWork['load'] = async <Row extends StreamRow, Event extends NewEvent>(
    model: InlineModel<Row, Event>,
    id: string,
  ) => {
    if (!locked.has(id)) throw new Error(`stream ${id} is not locked by this command`);
    if (!rows.has(id)) {
      const result = await sql<Row>`select * from ${sql.table(model.name)} where id = ${id}`.execute(tx);
      rows.set(id, result.rows[0]);
    }
    return rows.get(id) as Row | undefined;
  };
  return {
    tx,
    now,
    load,
    async append(model, id, events, workspaceId = command.workspaceId) {
      const before = await load(model, id);
      // Never earlier than the stream's last event, even when the database's clock was set back.
      const recordedAt = before && before.updated_at > now ? before.updated_at : now;
      let row = before;
      const recorded = events.map((event, index) => {
        const next = {
          ...event,
          eventId: (eventIds[appended] ??= uuidv7()),
          workspaceId: row?.workspace_id ?? workspaceId,
          streamId: id,
          streamVersion: (before?.version ?? 0) + index + 1,
          schemaVersion: currentVersion(model.upcasts, event.type),
          recordedAt,
        };
        appended += 1;
        row = foldEvent(model, row, next);
        return next;
      });
      if (!row) throw new Error(`stream ${id} does not exist and no event was given`);
      const metadata = typeof command.metadata === 'function' ? command.metadata(before) : command.metadata;
      await write(
        tx,
        before?.id === row.id ? updateRow(model, before, row) : upsertRow(model, row),
        recorded,
        metadata,
      );
      rows.set(id, row);
      return row;
    },
  };
}

/** Writes the events and the folded row in one statement: one round trip, however many events there are. */
async function write<Event extends NewEvent>(
  tx: Transaction<Database>,
  writeRow: RawBuilder<unknown>,
  events: readonly RecordedEvent<Event>[],
  metadata: EventMetadata,
): Promise<void> {
  const [first] = events;
  if (first === undefined) return;
  await sql`
    with appended as (
      insert into event
        (event_id, workspace_id, stream_id, stream_version, type, schema_version, data, metadata, recorded_at)
      select id, ${first.workspaceId}, ${first.streamId}, ${first.streamVersion - 1}::int + place, type, schema_version, data::json,
        ${canonicalJson(metadata)}::json, ${first.recordedAt}::timestamptz
      from unnest(
        ${events.map(({ eventId }) => eventId)}::uuid[],
        ${events.map(({ type }) => type)}::text[],
        ${events.map(({ schemaVersion }) => schemaVersion)}::smallint[],
        ${events.map(({ data }) => canonicalJson(data))}::text[]
      ) with ordinality as new_event (id, type, schema_version, data, place) order by place
    )
    ${writeRow}`.execute(tx);
}

/** Writes the columns of a folded row that have changed. The others would cost more than the event. */
function updateRow<Row extends StreamRow>(
  model: Pick<InlineModel<Row, never>, 'name' | 'jsonColumns'>,
  before: Row,
  row: Row,
): RawBuilder<unknown> {
  const columns = (Object.keys(row) as (keyof Row & string)[]).filter((column) => row[column] !== before[column]);
  const values = rowValues(model, row, columns);
  const assignments = columns.map((column, index) => sql`${sql.ref(column)} = ${values[index]}`);
  return sql`update ${sql.table(model.name)} set ${sql.join(assignments)} where id = ${row.id}`;
}

/** Inserts or replaces a folded row. */
export function upsertRow(model: Pick<AnyInlineModel, 'name' | 'jsonColumns'>, row: object): RawBuilder<unknown> {
  const columns = Object.keys(row);
  const assignments = columns
    .filter((column) => column !== 'id')
    .map((column) => sql`${sql.ref(column)} = ${sql.ref(`excluded.${column}`)}`);
  return sql`
    insert into ${sql.table(model.name)} (${sql.join(columns.map((column) => sql.ref(column)))})
    values (${sql.join(rowValues(model, row, columns))})
    on conflict (id) do update set ${sql.join(assignments)}`;
}
