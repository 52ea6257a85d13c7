import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { newestClosed, readNewEvents, type Checkpoint } from '#libs/event-log/read-events.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

/** The watch of one open stream. */
export type EventWatch = {
  /**
   * Resolves when the workspace has new events or calls since the last time, when a key or session of any workspace has changed, and
   * after `quietMs` without any of these. `isOver`: the process stops.
   */
  next(quietMs: number): Promise<{ hasEvents: boolean; newestCall: string | null; isOver: boolean }>;
  stop(): void;
};

export type EventStreams = BackgroundLoop & {
  /**
   * Throws rate_limited if the process, the workspace or the key has too many streams open. A key gets half of the streams of
   * its workspace.
   */
  watch(caller: Pick<Caller, 'workspaceId' | 'keyId'>, withCalls: boolean): EventWatch;
};

/** An open stream, and the changes that it does not know of. */
class Listener {
  readonly workspaceId: string;
  readonly keyId: string;
  readonly withCalls: boolean;
  // True at first, because events between opening the stream and the first poll must be read too.
  #hasEvents = true;
  #newestCall: string | null = null;
  /** The newest call that the stream knows of. */
  #knownCall: string | null = null;
  #wake: (() => void) | null = null;

  constructor({ workspaceId, keyId }: Pick<Caller, 'workspaceId' | 'keyId'>, withCalls: boolean) {
    this.workspaceId = workspaceId;
    this.keyId = keyId;
    this.withCalls = withCalls;
  }

  wake(): void {
    const wake = this.#wake;
    this.#wake = null;
    wake?.();
  }

  addEvents(): void {
    this.#hasEvents = true;
    this.wake();
  }

  addCall(id: string): void {
    if (id === this.#knownCall) return;
    this.#newestCall = id;
    this.#knownCall = id;
    this.wake();
  }

  /** Resolves when there is a change, `wake` is called, or `quietMs` have passed. */
  async next(quietMs: number, isOver: () => boolean): ReturnType<EventWatch['next']> {
    if (!this.#hasEvents && this.#newestCall === null && !isOver()) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, quietMs);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    const changes = { hasEvents: this.#hasEvents, newestCall: this.#newestCall, isOver: isOver() };
    this.#hasEvents = false;
    this.#newestCall = null;
    return changes;
  }
}

const eventsPerPoll = 1_000;

/**
 * Notifies open streams of changes in their workspaces. One small query for all of them reads the end of the log twice
 * a second, and another one the request log once a second. Neither runs while no stream is open.
 */
export function createEventStreams(deps: {
  db: Kysely<Database>;
  logger: Logger;
  /** The ID of the newest record in the request log of each workspace. */
  newestLogs: (db: Kysely<Database>, workspaceIds: readonly string[]) => Promise<ReadonlyMap<string, string>>;
  /** Changes with every key, session and right that this process learns of. */
  accessVersion: () => number;
  streamsMax: number;
  workspaceStreamsMax: number;
  pollMs?: number;
}): EventStreams {
  const { db, logger, newestLogs, accessVersion, streamsMax, workspaceStreamsMax, pollMs = 500 } = deps;
  const keyStreamsMax = Math.max(1, Math.floor(workspaceStreamsMax / 2));
  const listeners = new Set<Listener>();
  const stopping = new AbortController();
  let from: Checkpoint | null = null;
  let access = accessVersion();
  let turn = 0;

  async function pollEvents(from: Checkpoint): Promise<Checkpoint> {
    const { workspaceIds, end, isFull } = await readNewEvents(db, from, eventsPerPoll);
    for (const listener of listeners) {
      if (workspaceIds.has(listener.workspaceId)) listener.addEvents();
    }
    return isFull ? await pollEvents(end) : end;
  }

  async function pollCalls(): Promise<void> {
    const watched = [...listeners].filter(({ withCalls }) => withCalls);
    if (watched.length === 0) return;
    const newest = await newestLogs(db, [...new Set(watched.map(({ workspaceId }) => workspaceId))]);
    for (const listener of watched) {
      const id = newest.get(listener.workspaceId);
      if (id !== undefined) listener.addCall(id);
    }
  }

  /** Returns the position after which events are new. A stream may have read its first page before it was known. */
  async function begin(): Promise<Checkpoint> {
    const newest = await newestClosed(db);
    for (const listener of listeners) listener.addEvents();
    return newest;
  }

  async function poll(): Promise<'idle' | undefined> {
    if (access !== accessVersion()) {
      access = accessVersion();
      for (const listener of listeners) listener.wake();
    }
    if (listeners.size === 0) {
      from = null;
      return 'idle';
    }
    from = from === null ? await begin() : await pollEvents(from);
    turn += 1;
    if (turn % 2 === 1) await pollCalls();
    return undefined;
  }
  const loop = createBackgroundLoop({ name: 'event streams', periodMs: pollMs, run: poll, logger });

  return {
    ...loop,
    watch({ workspaceId, keyId }, withCalls) {
      const ofWorkspace = [...listeners].filter((listener) => listener.workspaceId === workspaceId);
      const ofKey = ofWorkspace.filter((listener) => listener.keyId === keyId).length;
      if (listeners.size >= streamsMax || ofWorkspace.length >= workspaceStreamsMax) throw tooManyStreams();
      if (ofKey >= keyStreamsMax) throw tooManyStreams(ofKey);
      const listener = new Listener({ workspaceId, keyId }, withCalls);
      listeners.add(listener);
      if (listeners.size === 1) void loop.wake();
      return {
        next: (quietMs) => listener.next(quietMs, () => stopping.signal.aborted),
        stop() {
          listeners.delete(listener);
          listener.wake();
        },
      };
    },
    async stop() {
      stopping.abort();
      for (const listener of listeners) listener.wake();
      await loop.stop();
    },
  };
}

const tooManyStreams = (ofKey?: number): GatewayError =>
  new GatewayError(
    'rate_limited',
    'too_many_streams',
    `${ofKey === undefined ? 'Too many event streams are open.' : `This key has ${ofKey} open event streams, half of the limit of its workspace.`} Close streams that you do not need, or read GET /v1/events in pages.`,
    { retryAfterMs: 10_000 },
  );
