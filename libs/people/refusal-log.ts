import type { EventLog } from '#libs/event-log/event-log.ts';
import type { Principal } from '#libs/http/caller.ts';
import { actorType, asActor } from '#libs/identity/call-identity.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { apiKeyModel, type RequestRefused } from '#libs/resources/api-keys/api-keys.ts';
import { refusedSignIns, sessionModel } from './sessions.ts';
import { userModel } from './users/users.ts';

/** A request that a known key was refused (403), or a sign-in. */
export type Refusal = {
  workspaceId: string;
  /** Null for a sign-in: the key or token was not valid. */
  keyId: string | null;
  /** Who acts with the key. */
  principal?: Principal;
  method: string;
  /** Template of the route. */
  route: string;
  code: string;
  /** The message of the error; it names what was missing. */
  message: string;
  address: string;
  requestId: string;
};

type Deps = {
  eventLog: Pick<EventLog, 'transact'>;
  logger: Logger;
  now: () => number;
  /** How often it is looked whether something is due. Default 1 s. */
  tickMs?: number;
};

export type RefusalLog = BackgroundLoop & {
  /** Notes a refusal in memory; it is written within a second or two. Costs nothing but a look into a map. */
  note: (refusal: Refusal) => void;
  /** Writes all refusals, also those that wait for their minute. For the end of the process, and for tests. */
  flush: () => Promise<void>;
  /** Refusals that were counted nowhere, because too many different ones came in a minute. */
  dropped: () => number;
};

type Entry = {
  first: Refusal;
  count: number;
  firstAt: number;
  lastAt: number;
  addresses: Set<string>;
  dueAt: number;
};

// A key, a route and a reason have one event a minute at most, however often they are tried: whoever holds any key could
// otherwise fill the log of everybody.
const windowMs = 60_000;
const entriesMax = 5_000;
// Nor must one workspace, with ever new keys, take the places of all.
const entriesOfWorkspaceMax = 500;
const addressesMax = 10;

/** Where a refusal is recorded, and of whom. */
function placeOf({ workspaceId, keyId, principal }: Refusal) {
  if (keyId === null) {
    const actor = { type: 'system' as const, id: 'sign-in' };
    return { actor, streamId: refusedSignIns, model: sessionModel, type: 'session.refused' };
  }
  const who = principal === undefined ? {} : { principal: asActor(principal), workspace_id: workspaceId };
  const type = principal === undefined ? 'api_key' : actorType({ keyId, principal });
  const model = type === 'user' ? userModel : apiKeyModel;
  return { actor: { type, id: keyId, ...who }, streamId: keyId, model, type: `${type}.request_refused` };
}

/**
 * Keeps the audit trail of refused requests: events in the stream of the key, or of the user without one, that was refused, each with a count. The
 * first refusal is written at once, the others of the same minute together. What a killed process had counted and not
 * written is lost, a minute at most; a database that is away delays the events.
 */
export function createRefusalLog({ eventLog, logger, now, tickMs = 1_000 }: Deps): RefusalLog {
  const entries = new Map<string, Entry>();
  /** How many of them each workspace has. */
  const taken = new Map<string, number>();
  let dropped = 0;

  const take = (workspaceId: string, change: 1 | -1): void => {
    const places = (taken.get(workspaceId) ?? 0) + change;
    if (places === 0) taken.delete(workspaceId);
    else taken.set(workspaceId, places);
  };

  const write = async (entry: Entry): Promise<void> => {
    const { first, count, firstAt, lastAt, addresses } = entry;
    const { workspaceId, method, route, code, message, requestId } = first;
    const { actor, streamId, model, type } = placeOf(first);
    const metadata = { actor, request_id: requestId };
    const data: RequestRefused = {
      method,
      route,
      code,
      message,
      count,
      addresses: [...addresses],
      first_at: new Date(firstAt).toISOString(),
      last_at: new Date(lastAt).toISOString(),
    };
    // Whoever is refused meanwhile is counted again, and nobody twice.
    entry.count = 0;
    entry.addresses = new Set();
    try {
      await eventLog.transact({ workspaceId, streams: [streamId], metadata }, (unit) =>
        unit.append(model, streamId, [{ type, data }]),
      );
      entry.dueAt = now() + windowMs;
    } catch (error) {
      entry.count += count;
      entry.firstAt = firstAt;
      for (const address of addresses) if (entry.addresses.size < addressesMax) entry.addresses.add(address);
      throw error;
    }
  };

  const writeDue = async (all: boolean): Promise<void> => {
    for (const [key, entry] of entries) {
      if (!all && now() < entry.dueAt) continue;
      if (entry.count === 0) {
        entries.delete(key);
        take(entry.first.workspaceId, -1);
      }
      // If it fails, the database is unavailable, and the others can wait as well.
      else await write(entry);
    }
  };
  const loop = createBackgroundLoop({
    name: 'audit of refusals',
    periodMs: tickMs,
    run: () => (entries.size === 0 ? 'idle' : writeDue(false)),
    logger,
  });

  return {
    ...loop,
    async stop() {
      await loop.stop();
      await writeDue(true).catch((error: unknown) => logger.warn({ err: error }, 'refused requests were not recorded'));
    },
    note(refusal) {
      const key = [refusal.keyId ?? refusedSignIns, refusal.method, refusal.route, refusal.code].join(' ');
      const at = now();
      let entry = entries.get(key);
      if (entry === undefined) {
        if (entries.size >= entriesMax || (taken.get(refusal.workspaceId) ?? 0) >= entriesOfWorkspaceMax) {
          dropped += 1;
          return;
        }
        entry = { first: refusal, count: 0, firstAt: at, lastAt: at, addresses: new Set(), dueAt: at };
        entries.set(key, entry);
        take(refusal.workspaceId, 1);
      }
      if (entry.count === 0) {
        entry.first = refusal;
        entry.firstAt = at;
      }
      entry.count += 1;
      entry.lastAt = at;
      if (entry.addresses.size < addressesMax) entry.addresses.add(refusal.address);
    },
    flush: () => writeDue(true),
    dropped: () => dropped,
  };
}
