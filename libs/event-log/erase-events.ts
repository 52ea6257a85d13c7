import { sql, type Kysely, type RawBuilder, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { canonicalJson } from './canonical-json.ts';
import { eventColumnNames, toEvent, type EventRow, type PositionedEvent } from './read-events.ts';

/** What replaces an erased text. The database accepts no other change of an event. */
export const erasedText = '[erased]';

/** The event that records which events were erased, in the transaction that erased them. */
export const erasureType = 'user.events_erased';

/** The SHA-256 of the JSON that an erasure left, in hexadecimal; null for a part of the event that was never erased. */
export type ErasedEvent = { event_id: string; data_sha256: string | null; metadata_sha256: string | null };

/**
 * Returns a value in which the texts that `isPersonal` selects are erased. `member` is the name of the member that a text
 * is the value of, or part of the list of; '' for none.
 */
export function eraseTexts(
  value: unknown,
  isPersonal: (text: string, member: string) => boolean,
  member = '',
): unknown {
  if (typeof value === 'string') return value !== '' && isPersonal(value, member) ? erasedText : value;
  if (Array.isArray(value)) return value.map((item: unknown) => eraseTexts(item, isPersonal, member));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, eraseTexts(item, isPersonal, name)]));
}

export type Person = {
  userId: string;
  /** All addresses that the user ever had, in lower case. */
  emails: readonly string[];
  /** At the identity provider, in lower case. */
  subjects: readonly string[];
  /** The user and the sessions of the user: their data is about the person. */
  streams: ReadonlySet<string>;
};

const containsText = ({ emails, subjects }: Person): RawBuilder<unknown> => {
  const texts = [...emails, ...subjects].map((text) => JSON.stringify(text).slice(1, -1));
  return sql`
    exists (select from unnest(${texts}::text[]) as text where position(text in lower(data::text || metadata::text)) > 0)`;
};

/**
 * Returns those of these workspaces that have data about a person: which the user joined at any time, or whose events name
 * the user or contain one of the texts.
 */
export async function findWorkspacesOfPerson(
  db: Kysely<Database>,
  person: Person,
  workspaces: readonly string[],
): Promise<string[]> {
  const { userId } = person;
  const { rows } = await sql<{ id: string }>`
    select held as id from unnest(${workspaces}::text[]) as held where exists (
      select from event
      where stream_id = ${userId} and type = 'user.workspace_joined' and data ->> 'workspace_id' = held
    ) or exists (
      select from event
      where workspace_id = held and (position(${userId} in data::text || metadata::text) > 0 or ${containsText(person)})
    )`.execute(db);
  return rows.map(({ id }) => id);
}

/** Events are looked at in slices of this many, and returned at most `foundMax` at a time. */
const slice = 20_000;
const foundMax = 200;

/**
 * Returns the next events after a position that are in these streams, were caused by the user, or contain one of the
 * texts, which are in lower case; and the position up to which there are no others, null at the end of the log. The events
 * of the user's own stream are selected only if `isOwn`, and then no others.
 */
export async function findEvents(
  db: Kysely<Database>,
  wanted: Person,
  after: number,
  isOwn: boolean,
): Promise<{ found: PositionedEvent[]; end: number | null }> {
  const { rows: ends } = await sql<{ end: number | null }>`
    select max(position) as end from (
      select position from event where position > ${after} order by position limit ${slice}) as next`.execute(db);
  const end = ends[0]?.end ?? null;
  if (end === null) return { found: [], end };
  const { rows } = await sql<EventRow>`
    select ${sql.raw(eventColumnNames)} from event
    where position > ${after} and position <= ${end} and (stream_id = ${wanted.userId}) = ${isOwn}::boolean and (
      stream_id = any(${[...wanted.streams]}::text[])
      or ${wanted.userId} in (metadata -> 'actor' ->> 'id', metadata -> 'actor' -> 'principal' ->> 'id')
      or ${containsText(wanted)})
    order by position limit ${foundMax}`.execute(db);
  const found = rows.map(toEvent);
  return { found, end: found.length < foundMax ? end : (found.at(-1)?.position ?? end) };
}

/**
 * Replaces data and metadata of these events, which must differ from the recorded ones only by erased texts. Returns what
 * the caller has to append as an event of `erasureType`, in the same transaction.
 */
export async function eraseEvents(
  tx: Transaction<Database>,
  events: readonly Pick<PositionedEvent, 'position' | 'data' | 'metadata'>[],
): Promise<ErasedEvent[]> {
  const { rows } = await sql<ErasedEvent>`
    update event set data = erased.data::json, metadata = erased.metadata::json
    from unnest(
      ${events.map(({ position }) => position)}::bigint[],
      ${events.map(({ data }) => canonicalJson(data))}::text[],
      ${events.map(({ metadata }) => canonicalJson(metadata))}::text[]
    ) as erased (position, data, metadata)
    where event.position = erased.position
    returning event_id,
      case when data_salt is null then encode(sha256(convert_to(event.data::text, 'UTF8')), 'hex') end as data_sha256,
      case when metadata_salt is null then encode(sha256(convert_to(event.metadata::text, 'UTF8')), 'hex') end
        as metadata_sha256`.execute(tx);
  return rows;
}

/** SQL for the erasures that name an event for which a condition is true. The condition calls that event `erased_event`. */
export const isErasureOf = (condition: RawBuilder<unknown>) => sql`(type = ${erasureType} and exists (
  select from json_to_recordset(event.data -> 'events') as erased (event_id uuid)
  join event as erased_event on erased_event.event_id = erased.event_id where ${condition}))`;
