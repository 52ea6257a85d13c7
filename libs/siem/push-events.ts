import { sql, type Kysely } from 'kysely';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { listEvents } from '#libs/event-log/list-events.ts';
import type { Upcasts } from '#libs/event-log/upcast.ts';
import { organisationId } from '#libs/http/caller.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createTurnsByOwner } from '#libs/kernel/turns-by-owner.ts';
import { toEventObject } from '#libs/records/public-event.ts';
import { SecretUnreadableError, type Secrets } from '#libs/secrets/secrets.ts';
import { wasRefused } from '#libs/request-log/row/call-outcome.ts';
import { readSealedRows, sealType, type CallsSealed } from '#libs/request-log/seal/sealed-calls.ts';
import { encodeItem, isWanted } from './event-formats.ts';
import { NotAcceptedError, sendItems } from './send-items.ts';
import {
  claimCursor,
  delayCursor,
  findDueDestinations,
  moveCursor,
  readDestination,
  type ClaimedCursor,
  type Reached,
  type SiemDestination,
} from '#libs/resources/siem/siem-cursor.ts';
import type { SiemDestinationData } from '#libs/resources/siem/siem-destination-data.ts';
import { toCallItem, toEventItem } from './siem-item.ts';

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
/** The maximum of one page. A single item can be larger. */
const pageItemsMax = 250;
const pageBytesMax = 262_144;

/**
 * Sends events to each destination in the order of the log, a page at a time, and moves its cursor when the page was
 * accepted. Records of calls are sent before the event that seals them, if the destination gets them. All workers do
 * this: a page is claimed by moving the next attempt into the future, so that it is repeated if the worker is killed. No
 * transaction is open meanwhile.
 */
export const createEventPusher = (deps: Deps): Part =>
  createTurnsByOwner({
    name: 'push of events',
    turnsMax,
    workspaceTurnsMax,
    find: () => findDueDestinations(deps.db),
    take: (id, signal) => pushPage(deps, id, signal),
    logger: deps.logger,
  });

async function pushPage(deps: Deps, id: string, signal: AbortSignal): Promise<void> {
  const { db, logger } = deps;
  const cursor = await claimCursor(db, id);
  if (cursor === undefined) return;
  try {
    const destination = await readDestination(deps, id);
    if (destination === null) return;
    const page = await readPage(deps, destination, cursor);
    const sent = page.items.length;
    const dropped = sent > 0 ? await sendItems({ ...deps, signal }, destination, page.items) : 0;
    if (dropped > 0) logger.warn({ destination_id: id, dropped, sent }, 'a collector dropped records of a page');
    await moveCursor(db, cursor, { ...page, dropped });
  } catch (error) {
    if (signal.aborted || isTransient(error)) throw error;
    const known = toMessage(error);
    const waitMs = retryWaitMs(cursor.failures + 1, error instanceof NotAcceptedError ? error.retryAfterMs : null);
    await delayCursor(db, cursor, { waitMs, message: known ?? unknownMessage });
    if (known === null) logger.error({ err: error, destination_id: id }, 'events cannot be pushed');
  }
}

/** The events after the cursor, up to the first seal of calls whose records are sent too, or records of that seal. */
async function readPage(
  { db, upcasts }: Deps,
  { workspaceId, data }: SiemDestination,
  cursor: ClaimedCursor,
): Promise<Reached & { items: string[] }> {
  // The receiver can refuse one of the items, so that those before it are sent apart.
  const limit = Math.max(1, Math.floor(pageItemsMax / 8 ** cursor.failures));
  const listed = await listEvents(
    db,
    {
      workspaceId: workspaceId === organisationId ? null : workspaceId,
      stream: null,
      type: null,
      after: cursor,
      // In the middle of a seal, only the seal is needed.
      limit: cursor.sentCall === null ? limit : 1,
      bytesMax: pageBytesMax,
    },
    upcasts,
    (one) => {
      const event = toEventObject(one);
      const text = isWanted(data.events, event) ? encodeItem(data, toEventItem(event)) : null;
      const seal = sendsCalls(data) && event.type === sealType ? (event.data as CallsSealed) : null;
      const { epoch, transactionId, position } = one;
      return { at: { epoch, transactionId, position }, text, seal, workspaceId: event.workspace_id };
    },
  );
  const first = listed.items.findIndex(({ seal }) => seal !== null);
  const sealed = listed.items[first];
  if (first === 0 && sealed?.seal) {
    const calls = await readCalls(db, sealed.workspaceId, sealed.seal, { data, after: cursor.sentCall, limit });
    if (calls.last !== null) return { items: calls.items, upTo: cursor, sentCall: calls.last };
  }
  // The seal itself comes after its records.
  const events = sealed === undefined ? listed.items : listed.items.slice(0, Math.max(1, first));
  const items = events.flatMap(({ text }) => text ?? []);
  return { items, upTo: events.at(-1)?.at ?? cursor, sentCall: null };
}

const sendsCalls = ({ calls }: SiemDestinationData): boolean => calls !== 'none';

/** Sealed calls that Sluice refused, or of which a guardrail failed. */
const isRefusedCall = sql<boolean>`(${wasRefused} or guardrails @? '$[*] ? (@.verdict != "passed")')`;

/** The next records of a seal, and the UUID of the last one; null: there are no more. */
async function readCalls(
  db: Kysely<Database>,
  workspaceId: string,
  seal: CallsSealed,
  { data, after, limit }: { data: SiemDestinationData; after: string | null; limit: number },
): Promise<{ items: string[]; last: string | null }> {
  const only = data.calls === 'refused' ? isRefusedCall : sql<boolean>`true`;
  const items: string[] = [];
  let last: string | null = null;
  let bytes = 0;
  for await (const rows of readSealedRows(db, workspaceId, seal, { after, only, pageRows: limit })) {
    for (const row of rows) {
      const item = encodeItem(data, toCallItem(row));
      bytes += item.length;
      if (items.length > 0 && bytes > pageBytesMax) return { items, last };
      items.push(item);
      last = row.id;
    }
    if (items.length > 0) break;
  }
  return { items, last };
}

const unknownMessage = 'The events could not be read or sent because of an internal error.';

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
