import { sql, type Kysely } from 'kysely';
import type { DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import { currentEpoch } from '#libs/event-log/epoch.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createAccessListener } from './access-listener.ts';

export type SnapshotOptions = {
  db: Kysely<Database>;
  logger: Logger;
  /** Receives the database's time with every poll. */
  databaseClock?: Pick<DatabaseClock, 'set'>;
  /** A direct connection for LISTEN; null: only polling, which also meets the limit of one second. */
  listenConnectionString: string | null;
  /** Between two polls. Default 500 ms: a revoked key is refused everywhere within 1 s even when a NOTIFY is lost. */
  pollMs?: number;
  /** A poll that takes longer has failed. Default 2 s: a caller with an unknown key waits for two at most. */
  pollTimeoutMs?: number;
  /**
   * After this time without a successful poll, requests are rejected, because a key could have been revoked meanwhile.
   * Absent: never.
   */
  staleAfterMs?: number;
  /** Monotonic, in milliseconds. */
  monotonicMs?: () => number;
  /**
   * Called when the event log has another epoch than at the first poll: the database was restored, so records can have
   * other contents under the same versions, and the state of this process is from a lost time line.
   */
  onRestored?: () => void;
};

/** The content of the snapshot, and how it is loaded. */
export type SnapshotContent<State> = {
  /** Before anything was loaded. */
  empty: State;
  /** Reads the database, which is at least as new as the polled version. Unchanged parts are taken from `previous`. */
  load(previous: State): Promise<State>;
};

export type Snapshot<State> = Part & {
  /** The current state. Ask again for every request. */
  state: () => State;
  /** Throws GatewayError `unavailable` when the snapshot was not confirmed for `staleAfterMs`. */
  assertFresh(): void;
  /**
   * Reads the database again, with a query that is sent after this call. Concurrent callers share one query, and only
   * one runs at any time. Rejects when the database does not answer.
   */
  refresh(): Promise<void>;
  /** For the writer of a change: like `refresh`, but a failure is only logged, because the change is committed. */
  catchUp(): Promise<void>;
  /** Random IDs that are missing from the database. Bounded, and cleared whenever anything changes. */
  readonly absent: { has(id: string): boolean; add(id: string): void };
  /** The version in use, for readiness and metrics. -1: nothing was loaded yet. */
  version(): number;
};

const absentMax = 10_000;

/**
 * Caches everything that requests need from the database, so that no request waits for it. It is refreshed by LISTEN,
 * by polling one row, and by the process's own commands (`announceAccessChange` makes a new version). `start` resolves
 * when the first load is done and rejects when it fails.
 */
export function createSnapshot<State>(options: SnapshotOptions, content: SnapshotContent<State>): Snapshot<State> {
  const { db, logger, pollMs = 500, pollTimeoutMs = 2_000, staleAfterMs = Infinity } = options;
  const monotonicMs = options.monotonicMs ?? (() => performance.now());
  const absent = new Set<string>();
  let state = content.empty;
  let loaded = -1;
  let firstEpoch: number | undefined;
  let confirmedMs: number | undefined;

  async function poll(): Promise<void> {
    const askedMs = monotonicMs();
    const { rows } = await sql<{ version: number; epoch: number; now: Date }>`
      select version, ${currentEpoch} as epoch, clock_timestamp() as now from access_version`.execute(db, {
      signal: AbortSignal.timeout(pollTimeoutMs),
    });
    const [row] = rows;
    if (row === undefined) throw new Error('access_version has no row');
    const { version, epoch, now } = row;
    firstEpoch ??= epoch;
    if (epoch !== firstEpoch) options.onRestored?.();
    options.databaseClock?.set(now.getTime(), askedMs, monotonicMs());
    if (version !== loaded) {
      state = await content.load(state);
      loaded = version;
      absent.clear();
    }
    confirmedMs = askedMs;
  }

  const loop = createBackgroundLoop({ name: 'access snapshot', periodMs: pollMs, run: poll, logger });

  async function refresh(): Promise<void> {
    await loop.wake();
    if (loop.error() !== undefined) throw loop.error();
  }

  const listener =
    options.listenConnectionString === null
      ? null
      : createAccessListener({
          connectionString: options.listenConnectionString,
          onChange: () => void loop.wake(),
          logger,
        });

  return {
    name: loop.name,
    async start() {
      await refresh();
      loop.start();
      await listener?.start?.();
    },
    async stop() {
      await listener?.stop?.();
      await loop.stop();
    },
    state: () => state,
    assertFresh() {
      if (confirmedMs !== undefined && monotonicMs() - confirmedMs <= staleAfterMs) return;
      throw new GatewayError(
        'unavailable',
        'access_unavailable',
        'Keys cannot be checked because the database is temporarily unavailable. Try again shortly.',
        { retryAfterMs: 1_000 },
      );
    },
    refresh,
    catchUp: loop.wake,
    absent: {
      has: (id) => absent.has(id),
      add(id) {
        if (absent.size >= absentMax) absent.clear();
        absent.add(id);
      },
    },
    version: () => loaded,
  };
}
