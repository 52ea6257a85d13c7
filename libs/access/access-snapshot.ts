import { setImmediate as nextTurn } from 'node:timers/promises';
import { sql, type Kysely } from 'kysely';
import type { DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { AnyResource, CachedKind } from '#libs/resources/define-resource.ts';
import { liveKind, type LiveKind } from '#libs/resources/live-resources.ts';
import type { AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import type { LiveApiKey } from '#libs/resources/api-keys.ts';
import type { LiveConfig } from '#libs/resources/configs.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { createAccessListener } from './access-listener.ts';
import { emptyAccess, loadAccess, type AccessState, type LiveVirtualKey } from './load-access.ts';
import type { Secrets } from './secrets.ts';

export type AccessSnapshotOptions = {
  db: Kysely<Database>;
  secrets: Pick<Secrets, 'open'>;
  logger: Logger;
  /** The kinds of records whose cached ones it holds. Default: those of this release. */
  kinds?: readonly AnyResource[];
  /** Is told the database's time with every poll. */
  databaseClock?: Pick<DatabaseClock, 'set'>;
  /** Direct connection for LISTEN; null: polling alone, which is within the promised second too. */
  listenConnectionString: string | null;
  /** Between two polls. Default 500 ms: a revoked key is refused everywhere within 1 s even when a NOTIFY is lost. */
  pollMs?: number;
  /** A poll that takes longer has failed. Default 2 s: a caller with an unknown key waits for two at most. */
  pollTimeoutMs?: number;
  /** Without a successful poll for so long, nothing is answered: a key may have been revoked since. Default 15 min. */
  staleAfterMs?: number;
  /** Monotonic, in milliseconds. */
  monotonicMs?: () => number;
};

export type AccessSnapshot = Part & {
  /** The living records of a kind, as of now; ask again for every request. */
  live<Entry>(kind: { noun: string; cached?: CachedKind<never, Entry> }): LiveKind<Entry>;
  findApiKey(digest: string): LiveApiKey | undefined;
  findVirtualKey(workspaceId: string, slug: string): LiveVirtualKey | undefined;
  findVirtualKeyById(id: string): LiveVirtualKey | undefined;
  /** By slug or id. */
  findConfig(workspaceId: string, name: string): LiveConfig | undefined;
  /** undefined: the workspace has none; null: this process cannot read them. */
  findGuardrails(workspaceId: string): AddedGuardrails | null | undefined;
  /** Throws GatewayError `unavailable` when the snapshot was not confirmed for `staleAfterMs`. */
  assertFresh(): void;
  /**
   * Looks into the database once more, with a query that is sent after this call. Calls at the same time share one, and
   * there is never more than one under way, however many callers miss. Rejects when the database does not answer.
   */
  refresh(): Promise<void>;
  /** For the writer of a change: `refresh`, but a failure is logged only, because the change is committed. */
  catchUp(): Promise<void>;
  /** Random ids that were looked up in the database in vain; forgotten whenever anything changes. Bounded. */
  readonly absent: { has(id: string): boolean; add(id: string): void };
  /** The version that is served; for readiness and metrics. -1: nothing was loaded yet. */
  version(): number;
};

const absentMax = 10_000;

/**
 * All live keys of all workspaces in memory, so that no request waits for the database. Refreshed by LISTEN, by polling
 * one row, and by the process's own commands. `start` resolves when the first load is done and rejects when it fails.
 */
export function createAccessSnapshot(options: AccessSnapshotOptions): AccessSnapshot {
  const { db, logger, pollMs = 500, pollTimeoutMs = 2_000, staleAfterMs = 15 * 60_000 } = options;
  const monotonicMs = options.monotonicMs ?? (() => performance.now());
  const absent = new Set<string>();
  let state: AccessState = emptyAccess;
  let confirmedMs = Number.NEGATIVE_INFINITY;
  let running: Promise<void> | undefined;
  let next: Promise<void> | undefined;
  let timer: NodeJS.Timeout | undefined;
  let isFailing = false;

  async function poll(): Promise<void> {
    const askedMs = monotonicMs();
    const { rows } = await sql<{ version: number; now: Date }>`
      select version, clock_timestamp() as now from access_version`.execute(db, {
      signal: AbortSignal.timeout(pollTimeoutMs),
    });
    const [row] = rows;
    if (row === undefined) throw new Error('access_version has no row');
    const { version, now } = row;
    options.databaseClock?.set(now.getTime(), askedMs, monotonicMs());
    if (version !== state.version) {
      state = await loadAccess({ kinds: resourceKinds, ...options }, version, state);
      absent.clear();
    }
    confirmedMs = askedMs;
  }

  function refresh(): Promise<void> {
    // A poll that is under way may have been answered before the caller's change: the one after it counts.
    next ??= (async () => {
      const current = running;
      if (current) await current.catch(() => {});
      else await nextTurn(); // so that all who miss in the same turn share this poll
      next = undefined;
      const mine = poll();
      running = mine;
      try {
        await mine;
      } finally {
        if (running === mine) running = undefined;
      }
    })();
    return next;
  }

  /** Logs the beginning and the end of an outage, not every poll of it. */
  async function catchUp(): Promise<void> {
    try {
      await refresh();
      if (isFailing) logger.info({ version: state.version }, 'access snapshot is up to date again');
      isFailing = false;
    } catch (error) {
      if (!isFailing) logger.warn({ err: error }, 'access snapshot cannot be refreshed');
      isFailing = true;
    }
  }

  const listener =
    options.listenConnectionString === null
      ? null
      : createAccessListener({
          connectionString: options.listenConnectionString,
          onChange: () => void catchUp(),
          logger,
        });

  return {
    name: 'access snapshot',
    async start() {
      await refresh();
      timer ??= setInterval(() => {
        if (!running && !next) void catchUp();
      }, pollMs);
      await listener?.start?.();
    },
    async stop() {
      clearInterval(timer);
      timer = undefined;
      await listener?.stop?.();
      await next?.catch(() => {});
      await running?.catch(() => {});
    },
    live: (kind) => liveKind(state.kinds, kind),
    findApiKey: (digest) => state.apiKeys.byLookup.get(digest),
    findVirtualKey: (workspaceId, slug) => state.virtualKeysBySlug.get(workspaceId)?.get(slug),
    findVirtualKeyById: (id) => state.virtualKeys.get(id),
    findGuardrails: (workspaceId) => (state.guardrails.size === 0 ? undefined : state.guardrails.get(workspaceId)),
    findConfig(workspaceId, name) {
      const { configs } = state;
      const byId = configs.byId.get(name);
      return byId?.workspaceId === workspaceId ? byId : configs.bySlug.get(workspaceId)?.get(name);
    },
    assertFresh() {
      if (monotonicMs() - confirmedMs <= staleAfterMs) return;
      throw new GatewayError(
        'unavailable',
        'access_unavailable',
        'Keys cannot be checked because the database is temporarily unavailable. Try again shortly.',
        { retryAfterMs: 1_000 },
      );
    },
    refresh,
    catchUp,
    absent: {
      has: (id) => absent.has(id),
      add(id) {
        if (absent.size >= absentMax) absent.clear();
        absent.add(id);
      },
    },
    version: () => state.version,
  };
}
