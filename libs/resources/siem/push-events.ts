import { sql, type Kysely } from 'kysely';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { listEvents } from '#libs/event-log/list-events.ts';
import type { Checkpoint } from '#libs/event-log/read-events.ts';
import type { Upcasts } from '#libs/event-log/upcast.ts';
import { organisationId } from '#libs/http/caller.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createTurnsByOwner } from '#libs/kernel/turns-by-owner.ts';
import { toEventObject } from '#libs/records/public-event.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { SecretUnreadableError, type Secrets } from '#libs/secrets/secrets.ts';
import { encodeEvent, isWanted } from './event-formats.ts';
import { NotAcceptedError, sendItems, type SiemDestination } from './send-items.ts';
import type { SiemDestinationData } from './siem-destination-data.ts';
import { oldestUnsent } from './siem-progress.ts';

type Deps = {
  db: Kysely<Database>;
  secrets: Secrets;
  egress: Egress;
  /** The operator's folder for events. */
  folder: string | undefined;
  upcasts: Upcasts;
  logger: Logger;
};

/** Destinations that one process sends to at a time, and those of one workspace. */
const turnsMax = 32;
const workspaceTurnsMax = 4;
/** The maximum of one page. The data of a single event can be larger. */
const pageEventsMax = 250;
const pageBytesMax = 262_144;
/** A page without a result is sent again after this time. Longer than any attempt takes. */
const claimFor = sql.raw(`interval '60 seconds'`);

/**
 * Sends events to each destination in the order of the log, a page at a time, and moves its cursor when the page was
 * accepted. All workers do this: a page is claimed by moving the next attempt into the future, so that it is repeated if the
 * worker is killed. No transaction is open meanwhile.
 */
export const createEventPusher = (deps: Deps): Part =>
  createTurnsByOwner({
    name: 'push of events',
    turnsMax,
    workspaceTurnsMax,
    find: () => findDue(deps.db),
    take: (id, signal) => pushPage(deps, id, signal),
    logger: deps.logger,
  });

async function findDue(db: Kysely<Database>): Promise<{ id: string; workspaceId: string }[]> {
  const { rows } = await sql<{ id: string; workspaceId: string }>`
    select destination_id as id, siem_cursor.workspace_id as "workspaceId" from siem_cursor
    join resource as destination on destination.id = destination_id
    left join resource as workspace on workspace.id = siem_cursor.workspace_id and workspace.kind = 'workspace'
    where (destination.data ->> 'enabled')::boolean and workspace.deleted_at is null
      and next_attempt_at <= clock_timestamp() and ${oldestUnsent} is not null
    order by random() limit 1000`.execute(db);
  return rows;
}

/** The cursor of a destination, claimed by this process as long as no other one increases `claims`. */
type Claimed = Checkpoint & { destination_id: string; claims: number; failures: number };

async function pushPage(deps: Deps, id: string, signal: AbortSignal): Promise<void> {
  const { db, upcasts, logger } = deps;
  const { rows: claimed } = await sql<Claimed>`
    update siem_cursor set claims = claims + 1, next_attempt_at = clock_timestamp() + ${claimFor}
    where destination_id = ${id} and next_attempt_at <= clock_timestamp()
    returning destination_id, epoch, transaction_id as "transactionId", position, claims, failures`.execute(db);
  const [cursor] = claimed;
  if (cursor === undefined) return;
  try {
    const destination = await readDestination(deps, id);
    if (destination === null) return;
    const { workspaceId, data } = destination;
    const page = await listEvents(
      db,
      {
        workspaceId: workspaceId === organisationId ? null : workspaceId,
        stream: null,
        type: null,
        after: cursor,
        // The receiver can refuse one of the events, so that those before it are sent apart.
        limit: Math.max(1, Math.floor(pageEventsMax / 8 ** cursor.failures)),
        bytesMax: pageBytesMax,
      },
      upcasts,
      (listed) => {
        const event = toEventObject(listed);
        return isWanted(data.events, event) ? encodeEvent(data, event) : null;
      },
    );
    const items = page.items.filter((item) => item !== null);
    if (items.length > 0) await sendItems({ ...deps, signal }, destination, items);
    await recordSuccess(db, cursor, page.end ?? cursor);
  } catch (error) {
    if (signal.aborted || isTransient(error)) throw error;
    await recordFailure(db, cursor, error);
    if (toMessage(error) === null) logger.error({ err: error, destination_id: id }, 'events cannot be pushed');
  }
}

/** Returns null for a destination that was deleted or disabled meanwhile. Throws SecretUnreadableError. */
async function readDestination({ db, secrets }: Deps, id: string): Promise<SiemDestination | null> {
  const { rows } = await sql<ResourceRow<SiemDestinationData>>`
    select * from resource where id = ${id} and deleted_at is null`.execute(db);
  const [row] = rows;
  if (row?.data.enabled !== true) return null;
  const { workspace_id: workspaceId, data } = row;
  const members = await secrets.readOwned(db, { workspaceId, ownerId: id });
  return { id, workspaceId, data, token: members?.['token'] };
}

async function recordSuccess(
  db: Kysely<Database>,
  { destination_id, claims }: Claimed,
  { epoch, transactionId, position }: Checkpoint,
): Promise<void> {
  await sql`
    update siem_cursor set epoch = ${epoch}, transaction_id = ${transactionId}::xid8, position = ${position}, failures = 0,
      last_error = null, sent_at = clock_timestamp(), next_attempt_at = clock_timestamp()
    where destination_id = ${destination_id} and claims = ${claims}`.execute(db);
}

async function recordFailure(db: Kysely<Database>, cursor: Claimed, error: unknown): Promise<void> {
  const { destination_id, claims, failures } = cursor;
  const waitMs = retryWaitMs(failures + 1, error instanceof NotAcceptedError ? error.retryAfterMs : null);
  const message = toMessage(error) ?? 'The events could not be read or sent because of an internal error.';
  await sql`
    update siem_cursor set failures = failures + 1, last_error = ${message.slice(0, 1_000)},
      next_attempt_at = clock_timestamp() + ${waitMs}::float8 * interval '1 millisecond'
    where destination_id = ${destination_id} and claims = ${claims}`.execute(db);
}

/** A message for the owner of the destination; null for an error that is not its own. */
function toMessage(error: unknown): string | null {
  if (error instanceof NotAcceptedError) return error.message;
  if (error instanceof SecretUnreadableError) return 'The stored token cannot be decrypted. Send it again.';
  return null;
}

const firstWaitMs = 1_000;
const longestWaitMs = 300_000;

/**
 * How long to wait after a failed attempt: 1 s, 2 s and so on up to five minutes, a fifth more or less, and at least as long
 * as the receiver asks for, five minutes at most.
 * @testOnly
 */
export function retryWaitMs(failures: number, retryAfterMs: number | null, random: () => number = Math.random): number {
  const backoffMs = Math.min(firstWaitMs * 2 ** (failures - 1), longestWaitMs);
  return Math.max(backoffMs * (0.8 + 0.4 * random()), Math.min(retryAfterMs ?? 0, longestWaitMs));
}
