import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { isAfter, isUpTo, logStart, newestClosed, pageBytesMax, pageInBytes, type Checkpoint } from './read-events.ts';

/** The end of the copied part of the log: the first events, or those recorded up to a time; null: all events. */
export type LogEnd = { events: number } | { at: Date } | null;

const pageEvents = 1_000;

/** How many events a copy has at most, and the end of the log that it reads. */
export type LogPart = { until: LogEnd; end: Checkpoint; events: number };

/** The part of the log before `until`. New events are not part of it, whenever they are read. */
export async function selectPart(db: Kysely<Database>, until: LogEnd): Promise<LogPart> {
  const end = await newestClosed(db);
  const limit = until !== null && 'events' in until ? until.events : null;
  const { rows } = await sql<{ events: number }>`
    select count(*) as events from (select from event where ${inPart({ until, end })} limit ${limit}) as part`.execute(
    db,
  );
  return { until, end, events: rows[0]?.events ?? 0 };
}

const inPart = ({ until, end }: Pick<LogPart, 'until' | 'end'>) =>
  until !== null && 'at' in until ? sql`${isUpTo(end)} and recorded_at <= ${until.at}` : isUpTo(end);

/**
 * Copies a part of a log into an empty one, with positions, times, salts and hashes, and the epochs that it has events
 * of. The trigger that places new events is disabled within the transaction, which only the owner of the table can do.
 * A page of events is in memory. `onProgress` gets the number of events so far.
 */
export async function copyLog(
  source: Kysely<Database>,
  target: Transaction<Database>,
  part: LogPart,
  onProgress: (events: number) => void,
): Promise<void> {
  await sql`alter table event disable trigger event_is_placed`.execute(target);
  let after = logStart;
  for (let copied = 0; copied < part.events;) {
    const rows = await readPage(source, part, after, Math.min(pageEvents, part.events - copied));
    const last = rows.at(-1);
    if (last === undefined) break;
    // The text of a row has all of its columns, exactly as they are.
    await sql`
      insert into event select (copied).* from (
        select line::event as copied from unnest(${rows.map(({ line }) => line)}::text[]) as line offset 0
      ) as page`.execute(target);
    after = last;
    onProgress((copied += rows.length));
  }
  await sql`alter table event enable trigger event_is_placed`.execute(target);
  await sql`select setval('event_position', max(position)) from event having count(*) > 0`.execute(target);
  const epochs = await source.selectFrom('event_epoch').selectAll().where('epoch', '<=', after.epoch).execute();
  await sql`delete from event_epoch`.execute(target);
  await target.insertInto('event_epoch').values(epochs).execute();
}

async function readPage(
  db: Kysely<Database>,
  part: LogPart,
  after: Checkpoint,
  limit: number,
): Promise<(Checkpoint & { line: string })[]> {
  const page = pageInBytes('epoch, transaction_id, position');
  const { rows } = await sql<Checkpoint & { line: string }>`
    select epoch, transaction_id as "transactionId", position, line from (
      select epoch, transaction_id, position, event::text as line, ${sql.raw(page.columns)}
      from event where ${inPart(part)} and ${isAfter(after)}
      ${sql.raw(page.window)}
      order by epoch, transaction_id, position limit ${limit}
    ) as page
    where ${sql.raw(page.fits(pageBytesMax))}
    order by epoch, transaction_id, position`.execute(db);
  return rows;
}

/** The number of events, and of those whose hash does not fit them. */
export async function countEvents(db: Kysely<Database>): Promise<{ events: number; changed: number }> {
  const { rows } = await sql<{ events: number; changed: number }>`
    select count(*) as events, count(*) filter (
      where sha256 is distinct from sha256(convert_to(event_envelope(event), 'UTF8'))) as changed
    from event`.execute(db);
  return rows[0] ?? { events: 0, changed: 0 };
}
