import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { erasedText, findWorkspacesOfPerson, type Person } from '#libs/event-log/erase-events.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findHeld, underHold } from '../retention.ts';

/** Finds a person who can be erased. Throws not_found, and conflict for a user who is not deleted. */
export async function findPerson(db: Kysely<Database>, userId: string): Promise<Person> {
  const { rows: users } = await sql<{ deleted_at: Date | null }>`
    select deleted_at from resource where kind = 'user' and id = ${userId}`.execute(db);
  const [user] = users;
  if (user === undefined) throw new GatewayError('not_found', 'user_not_found', `There is no user '${userId}'.`);
  if (user.deleted_at === null) {
    const message = `The user '${userId}' can still sign in. Delete the user first.`;
    throw new GatewayError('conflict', 'user_not_deleted', message);
  }
  return await readPerson(db, userId);
}

/** What the events of a user say about the person. */
export async function readPerson(db: Kysely<Database>, userId: string): Promise<Person> {
  const emails = new Set<string>();
  const subjects = new Set<string>();
  const note = (texts: Set<string>, text: unknown): void => {
    if (typeof text === 'string' && text !== '' && text !== erasedText) texts.add(text.toLowerCase());
  };
  for (let version = 0; ;) {
    const events = await readStream(db, userId, version);
    for (const { data } of events as unknown as { data: Record<string, unknown> }[]) {
      note(emails, data['email']);
      note(subjects, data['subject']);
    }
    const last = events.at(-1);
    if (last === undefined) break;
    version = last.streamVersion;
  }
  const { rows: sessions } = await sql<{ id: string }>`
    select id from resource where kind = 'session' and data -> 'principal' ->> 'id' = ${userId}`.execute(db);
  const streams = new Set([userId, ...sessions.map(({ id }) => id)]);
  return { userId, emails: [...emails], subjects: [...subjects], streams };
}

/**
 * Refuses to erase a person whose data is in workspaces under legal hold. `findCalls` returns those of these workspaces
 * that have calls of the user. Throws conflict (`legal_hold`).
 */
export async function refuseHeldPerson(
  db: Kysely<Database>,
  person: Person,
  findCalls: (workspaces: readonly string[]) => Promise<string[]> = () => Promise.resolve([]),
): Promise<void> {
  const held = await findHeld(db);
  if (held.length === 0) return;
  const ids = held.map(({ id }) => id);
  let found = await findWorkspacesOfPerson(db, person, ids);
  if (found.length === 0) found = await findCalls(ids);
  if (found.length === 0) return;
  const names = held.filter(({ id }) => found.includes(id)).map(({ id, slug }) => slug ?? id);
  throw underHold(names, 'so a person whose data is there cannot be erased');
}

/** The deleted users who wait for their erasure, and the events that requested it. */
export async function findErasures(
  db: Kysely<Database>,
): Promise<{ userId: string; reason: string; eventId: string }[]> {
  const { rows } = await sql<{ userId: string; reason: string; eventId: string }>`
    select id as "userId", data -> 'erasure' ->> 'reason' as reason, data -> 'erasure' ->> 'event_id' as "eventId"
    from resource where kind = 'user' and deleted_at is not null and data ? 'erasure'`.execute(db);
  return rows;
}
