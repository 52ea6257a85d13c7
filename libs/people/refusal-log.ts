import type { EventLog } from '#libs/event-log/event-log.ts';
import type { Principal } from '#libs/http/caller.ts';
import { actorType, asActor } from '#libs/identity/call-identity.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { apiKeyModel, type RequestRefused } from '#libs/resources/api-keys/api-keys.ts';
import { refusedSignIns, sessionModel } from './sessions.ts';
import { userModel } from './users/users.ts';

/** A request of a known key that was refused (403), or a refused sign-in. */
export type Refusal = {
  workspaceId: string;
  /** Null for a sign-in, because its key or token was invalid. */
  keyId: string | null;
  /** The principal that acts with the key. */
  principal?: Principal;
  method: string;
  /** The template of the route. */
  route: string;
  code: string;
  /** The error message, which names the missing right. */
  message: string;
  address: string;
  requestId: string;
};

type Deps = {
  eventLog: Pick<EventLog, 'transact'>;
  logger: Logger;
  now: () => number;
  /** How often due entries are checked. Default 1 s. */
  tickMs?: number;
};

export type RefusalLog = BackgroundLoop & {
  /** Records a refusal in memory; it is written within a second or two. The cost is a single map lookup. */
  note: (refusal: Refusal) => void;
  /** Writes all refusals, including those whose minute has not ended. For the end of the process, and for tests. */
  flush: () => Promise<void>;
  /** The number of refusals that were not counted because too many different ones arrived in a minute. */
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

// Each combination of key, route and reason has at most one event per minute, no matter how often it is tried. Otherwise any
// key could fill the log that everyone shares.
const windowMs = 60_000;
const entriesMax = 5_000;
// One workspace that keeps creating keys must not use up all entries either.
const entriesOfWorkspaceMax = 500;
const addressesMax = 10;

/** The stream and the actor for a refusal's event. */
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
 * Keeps the audit trail of refused requests: events, each with a count, in the stream of the key (or of the user, if there
 * is no key) that was refused. The first refusal is written immediately; the others of the same minute are written together.
 * A killed process loses the refusals that it had counted but not written, which is at most one minute of them. An
 * unavailable database delays the events.
 */
export function createRefusalLog({ eventLog, logger, now, tickMs = 1_000 }: Deps): RefusalLog {
  const entries = new Map<string, Entry>();
  /** How many entries each workspace has. */
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
    // Refusals that arrive in the meantime are counted anew, and none is counted twice.
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
      // If this fails, the database is unavailable, and the other entries can wait as well.
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
