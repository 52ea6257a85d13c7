import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Checkpoint } from '#libs/event-log/read-events.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import type { SiemDestinationData } from './siem-destination-data.ts';
import { oldestUnsent } from './siem-progress.ts';

// How far a destination has got in the log. Pages are sent by libs/siem.

export type SiemDestination = {
  id: string;
  workspaceId: string;
  data: SiemDestinationData;
  token: Secret | undefined;
};

/** A page without a result is sent again after this time. Longer than any attempt takes. */
const claimFor = sql.raw(`interval '60 seconds'`);

/** Destinations with events that can be sent now, in any order. */
export async function findDueDestinations(db: Kysely<Database>): Promise<{ id: string; workspaceId: string }[]> {
  const { rows } = await sql<{ id: string; workspaceId: string }>`
    select destination_id as id, siem_cursor.workspace_id as "workspaceId" from siem_cursor
    join resource as destination on destination.id = destination_id
    left join resource as workspace on workspace.id = siem_cursor.workspace_id and workspace.kind = 'workspace'
    where (destination.data ->> 'enabled')::boolean and workspace.deleted_at is null
      and next_attempt_at <= clock_timestamp() and ${oldestUnsent} is not null
    order by random() limit 1000`.execute(db);
  return rows;
}

/**
 * The cursor of a destination, claimed by this process as long as no other one increases `claims`. `sentCall`: the last
 * record that was sent of the seal that comes next.
 */
export type ClaimedCursor = Checkpoint & {
  destination_id: string;
  claims: number;
  failures: number;
  sentCall: string | null;
};

/** Claims the cursor of a destination. undefined: it waits, or another process is sending its page. */
export async function claimCursor(db: Kysely<Database>, id: string): Promise<ClaimedCursor | undefined> {
  const { rows } = await sql<ClaimedCursor>`
    update siem_cursor set claims = claims + 1, next_attempt_at = clock_timestamp() + ${claimFor}
    where destination_id = ${id} and next_attempt_at <= clock_timestamp()
    returning destination_id, epoch, transaction_id as "transactionId", position, claims, failures,
      sent_call as "sentCall"`.execute(db);
  return rows[0];
}

/** Returns null for a destination that was deleted or disabled meanwhile. Throws SecretUnreadableError. */
export async function readDestination(
  { db, secrets }: { db: Kysely<Database>; secrets: Secrets },
  id: string,
): Promise<SiemDestination | null> {
  const { rows } = await sql<ResourceRow<SiemDestinationData>>`
    select * from resource where id = ${id} and deleted_at is null`.execute(db);
  const [row] = rows;
  if (row?.data.enabled !== true) return null;
  const { workspace_id: workspaceId, data } = row;
  const members = await secrets.readOwned(db, { workspaceId, ownerId: id });
  return { id, workspaceId, data, token: members?.['token'] };
}

/** Where a page ends. `upTo`: its last event. `sentCall`: its last record of the seal after that event; null: it has none. */
export type Reached = { upTo: Checkpoint; sentCall: string | null };

/** A page was accepted. `dropped`: how many of its records the receiver reported as dropped. */
export async function moveCursor(
  db: Kysely<Database>,
  { destination_id, claims }: ClaimedCursor,
  { upTo: { epoch, transactionId, position }, sentCall, dropped }: Reached & { dropped: number },
): Promise<void> {
  await sql`
    update siem_cursor set epoch = ${epoch}, transaction_id = ${transactionId}::xid8, position = ${position}, failures = 0,
      dropped = dropped + ${dropped}, sent_call = ${sentCall}, last_error = null,
      sent_at = clock_timestamp(), next_attempt_at = clock_timestamp()
    where destination_id = ${destination_id} and claims = ${claims}`.execute(db);
}

/** A page was not accepted. It is sent again after `waitMs`. `message`: why, for the owner of the destination. */
export async function delayCursor(
  db: Kysely<Database>,
  { destination_id, claims }: ClaimedCursor,
  { waitMs, message }: { waitMs: number; message: string },
): Promise<void> {
  await sql`
    update siem_cursor set failures = failures + 1, last_error = ${message.slice(0, 1_000)},
      next_attempt_at = clock_timestamp() + ${waitMs}::float8 * interval '1 millisecond'
    where destination_id = ${destination_id} and claims = ${claims}`.execute(db);
}
