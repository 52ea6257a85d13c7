import { sql, type Kysely, type RawBuilder, type Transaction } from 'kysely';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { isClosed, logStart, readNextPage, type Checkpoint, type PositionedEvent } from './read-events.ts';
import { upcast, type Upcasts } from './upcast.ts';

/** A read model of many streams, written from the events of the whole log in commit order. */
export type Subscriber = {
  /** The name of its checkpoint and in metrics. It never changes. */
  name: string;
  /** The tables that only this subscriber writes. A rebuild replaces their rows; without any, it cannot be rebuilt. */
  tables: readonly (keyof Database)[];
  /** The types of the events that it gets. Its checkpoint moves past all others, which are not read. Absent: all types. */
  types?: readonly string[];
  /**
   * Writes the effect of these events to its tables, in the transaction that also moves the checkpoint, so that each
   * event is applied exactly once even after a crash. It must have no effect outside the transaction. If it needs one,
   * it enqueues a job in the transaction.
   */
  apply(tx: Transaction<Database>, events: readonly PositionedEvent[]): Promise<void>;
};

// Some milliseconds of work for one transaction. Larger pages are hardly faster.
export const pageEventsMax = 500;

/**
 * Without events: there are none, another process holds the lease (`busy`), or the next try is not due (`waiting`).
 * `isFull`: more events could be waiting.
 */
type PageResult = { events: number; state: 'applied' | 'busy' | 'waiting'; isFull: boolean };

/**
 * Applies the next page of at most `limit` events, in one transaction with the checkpoint. The lease is the lock on the
 * checkpoint's row: it is held for one page and ends with the session when the process is killed. Throws the errors of
 * `apply`; the page is not applied in that case.
 */
export async function applyNextPage(
  db: Kysely<Database>,
  subscriber: Subscriber,
  upcasts: Upcasts,
  limit: number = pageEventsMax,
): Promise<PageResult> {
  return await db.transaction().execute(async (tx) => {
    const { rows } = await sql<{ epoch: number; transactionId: string; position: number; due: boolean }>`
      select epoch, transaction_id as "transactionId", position,
        coalesce(retry_at <= clock_timestamp(), true) as due
      from subscription_checkpoint where name = ${subscriber.name} for update skip locked`.execute(tx);
    const [checkpoint] = rows;
    if (!checkpoint) return { events: 0, state: 'busy', isFull: false };
    if (!checkpoint.due) return { events: 0, state: 'waiting', isFull: false };
    const { events, end, isFull } = await readNextPage(tx, checkpoint, limit, subscriber.types);
    const last = events.at(-1);
    if (last === undefined) {
      if (end !== null) await moveTo(tx, subscriber.name, end);
      return { events: 0, state: 'applied', isFull };
    }
    try {
      await subscriber.apply(
        tx,
        events.map((event) => upcast(upcasts, event)),
      );
    } catch (error) {
      if (events.length > 1 || isTransient(error)) throw error;
      const reason = error instanceof Error ? error.message : String(error);
      throw new Error(`event ${last.eventId} (${last.type}): ${reason}`, { cause: error });
    }
    await moveTo(tx, subscriber.name, last);
    return { events: events.length, state: 'applied', isFull };
  });
}

/** Whether there is anything to apply. Assigns no transaction id, so it can be called all the time. */
export async function hasNextEvent(db: Kysely<Database>, name: string): Promise<boolean> {
  const { rows } = await sql<{ waits: boolean }>`
    select exists (select from event where ${isClosed} and (event.epoch, event.transaction_id, event.position) >
      (checkpoint.epoch, checkpoint.transaction_id, checkpoint.position)) as waits
    from subscription_checkpoint as checkpoint where name = ${name}`.execute(db);
  return rows[0]?.waits === true;
}

/** Creates the checkpoint of a new subscriber, at the beginning of the log. */
export async function ensureCheckpoint(db: Kysely<Database>, { name }: Pick<Subscriber, 'name'>): Promise<void> {
  await db
    .insertInto('subscription_checkpoint')
    .values({ name, epoch: 0, transaction_id: '0', position: 0 })
    .onConflict((on) => on.doNothing())
    .execute();
}

/** Lets a subscriber that failed retry immediately. Returns false when there is none of this name. */
export async function retryNow(db: Kysely<Database>, name: string): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable('subscription_checkpoint')
    .set({ failures: 0, last_error: null, retry_at: null })
    .where('name', '=', name)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

const firstRetryMs = 1_000;
const lastRetryMs = 60_000;

/**
 * Records a failure of the event after the checkpoint, and when the next try is due. Returns the number of failures so
 * far.
 */
export async function recordFailure(db: Kysely<Database>, name: string, message: string): Promise<number> {
  const { rows } = await sql<{ failures: number }>`
    update subscription_checkpoint set failures = failures + 1, last_error = ${message.slice(0, 1_000)},
      retry_at = clock_timestamp() +
        least(${lastRetryMs}::float8, ${firstRetryMs}::float8 * power(2, least(failures, 20))) * interval '1 millisecond'
    where name = ${name} returning failures`.execute(db);
  return rows[0]?.failures ?? 0;
}

/**
 * Applies the whole log to temporary copies of a subscriber's tables, and then changes the tables where they differ from
 * these, in one transaction that ends where the subscriber continues. Readers see the old or the new rows, and no other
 * writer of the log waits. `onProgress` gets the number of events applied so far, which is returned at the end. Throws
 * when an event cannot be applied.
 */
export async function rebuildSubscriber(
  db: Kysely<Database>,
  subscriber: Subscriber,
  upcasts: Upcasts,
  onProgress: (events: number) => void,
): Promise<number> {
  const { name, tables, types } = subscriber;
  await ensureCheckpoint(db, subscriber);
  return await db.connection().execute(async (session) => {
    const { rows } = await sql<{ schema: string }>`select current_schema() as schema`.execute(session);
    const liveTable = (table: string) => sql.table(`${rows[0]?.schema}.${table}`);
    let [at, applied] = [logStart, 0];
    /** Applies the next page. Returns whether there was one. */
    const applyPage = async (tx: Transaction<Database>): Promise<boolean> => {
      const { events, end } = await readNextPage(tx, at, pageEventsMax, types);
      if (events.length > 0)
        await subscriber.apply(
          tx,
          events.map((event) => upcast(upcasts, event)),
        );
      at = events.at(-1) ?? end ?? at;
      onProgress((applied += events.length));
      return end !== null;
    };
    try {
      // Temporary tables come first in the search path, so `apply` writes to them.
      for (const table of tables)
        await sql`create temp table ${sql.id(table)} (like ${liveTable(table)} including all)`.execute(session);
      while (await session.transaction().execute(applyPage));
      await session.transaction().execute(async (tx) => {
        // No worker applies a page until the end of this transaction.
        await sql`select from subscription_checkpoint where name = ${name} for update`.execute(tx);
        while (await applyPage(tx));
        for (const table of tables) await makeEqual(tx, liveTable(table), sql`pg_temp.${sql.id(table)}`);
        await moveTo(tx, name, at);
      });
      return applied;
    } finally {
      for (const table of tables) await sql`drop table if exists pg_temp.${sql.id(table)}`.execute(session);
    }
  });
}

/** Deletes the rows of a table that a copy does not have, and inserts those that only the copy has. */
async function makeEqual(
  tx: Transaction<Database>,
  table: RawBuilder<unknown>,
  copy: RawBuilder<unknown>,
): Promise<void> {
  await sql`
    delete from ${table} where ctid in (
      select live.ctid from ${table} as live left join ${copy} as wanted on wanted::text = live::text
      where wanted.tableoid is null)`.execute(tx);
  await sql`
    insert into ${table} select wanted.* from ${copy} as wanted left join ${table} as live on live::text = wanted::text
    where live.tableoid is null`.execute(tx);
}

/** Returns the checkpoint with this name. Throws if there is none. */
export async function readCheckpoint(db: Kysely<Database>, name: string): Promise<Checkpoint> {
  return await db
    .selectFrom('subscription_checkpoint')
    .select(['epoch', 'transaction_id as transactionId', 'position'])
    .where('name', '=', name)
    .executeTakeFirstOrThrow();
}

/** Moves a checkpoint, in the transaction that writes the effect of the events before it. */
export async function moveTo(tx: Transaction<Database>, name: string, to: Checkpoint): Promise<void> {
  await sql`
    update subscription_checkpoint set epoch = ${to.epoch}, transaction_id = ${to.transactionId}::xid8,
      position = ${to.position}, failures = 0, last_error = null, retry_at = null, moved_at = clock_timestamp()
    where name = ${name}`.execute(tx);
}

export type SubscriberState = {
  name: string;
  checkpoint: Checkpoint;
  /** The number of events after the checkpoint, counted up to `eventsBehindMax`. */
  eventsBehind: number;
  /** The age of the oldest of these events. */
  secondsBehind: number;
  /** The number of failed tries in a row, and the error of the last one. */
  failures: number;
  lastError: string | null;
  retryAt: Date | null;
  movedAt: Date | null;
};

export const eventsBehindMax = 10_000;

/** Returns the progress of every subscriber, including those of other releases that are in the database. */
export async function listSubscribers(db: Kysely<Database>): Promise<SubscriberState[]> {
  const { rows } = await sql<{
    name: string;
    epoch: number;
    transaction_id: string;
    position: number;
    events: number;
    seconds: number | null;
    failures: number;
    last_error: string | null;
    retry_at: Date | null;
    moved_at: Date | null;
  }>`
    select checkpoint.*, behind.events, behind.seconds from subscription_checkpoint as checkpoint
    cross join lateral (
      select count(*)::int as events, extract(epoch from clock_timestamp() - min(recorded_at))::float8 as seconds
      from (
        select recorded_at from event
        where (epoch, transaction_id, position) > (checkpoint.epoch, checkpoint.transaction_id, checkpoint.position)
        order by epoch, transaction_id, position limit ${eventsBehindMax}
      ) as next
    ) as behind order by name`.execute(db);
  return rows.map((row) => ({
    name: row.name,
    checkpoint: { epoch: row.epoch, transactionId: row.transaction_id, position: row.position },
    eventsBehind: row.events,
    secondsBehind: Math.max(0, row.seconds ?? 0),
    failures: row.failures,
    lastError: row.last_error,
    retryAt: row.retry_at,
    movedAt: row.moved_at,
  }));
}
