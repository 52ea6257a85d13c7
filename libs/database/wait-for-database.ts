import pg from 'pg';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { scrub } from '#libs/kernel/scrub.ts';
import { isTransient, reasonOf, sqlStateOf } from './database-error.ts';
import { createPool } from './pool.ts';
import { retryDuringOutage } from './retry-during-outage.ts';

export type DatabaseWaitOptions = {
  connectionString: string;
  logger: Logger;
  /** How long the database may hold up the start, all of its steps together. 0: a step that fails is not repeated. */
  waitMsMax: number;
  /** Between two tries: the first pause, doubled each time up to the longest. Default 200 ms and 2 s. */
  backoff?: { firstMs: number; maxMs: number };
  /** Between two lines of the log that tell of the wait. Default 5 s. */
  noticeMs?: number;
  /** The longest try to connect, and the longest wait for the answer after it. Default 5 s. */
  probeTimeoutMs?: number;
};

export type DatabaseWait = {
  /** The first part that needs the database: started when the database answers and is fit to be used. */
  readonly part: Part;
  /**
   * The part with a start that is begun again while the database is away. Only for a start that may be repeated after it
   * failed half-way.
   */
  readonly outlasting: (part: Part) => Part;
};

/** README says 15 or newer. */
const serverVersionMin = 15;
/** Wrong password, a user that may not connect (pg_hba.conf), no such database: the operator has to change something. */
const refusedStates = new Set(['28P01', '28000', '3D000']);

/**
 * How the start of a process outlasts a database that is away: connections that are refused or lost, a host name that is
 * not known (yet), timeouts, a server that is starting, stopping or full. It tries again with growing pauses and says so
 * in the log, now and then, with host, port and reason.
 *
 * A start throws ConfigurationError at once where waiting would not help (a wrong password, no such database, a server
 * that is too old), an Error when `waitMsMax` has passed, and what it threw itself when that is not about the connection.
 */
export function createDatabaseWait(options: DatabaseWaitOptions): DatabaseWait {
  const { connectionString, logger, waitMsMax, backoff = { firstMs: 200, maxMs: 2_000 } } = options;
  const { noticeMs = 5_000, probeTimeoutMs = 5_000 } = options;
  const { host, port, database = '' } = new pg.Client({ connectionString });
  const place = `${host}:${port}`;
  let waitedMs = 0;
  let noticedAt = Number.NEGATIVE_INFINITY;

  const notice = (error: unknown): void => {
    if (performance.now() - noticedAt < noticeMs) return;
    noticedAt = performance.now();
    logger.warn({ host, port, database, reason: scrub(reasonOf(error)) }, 'waiting for the database');
  };
  const unusable = (error: unknown): ConfigurationError =>
    new ConfigurationError(
      `The database "${database}" at ${place} cannot be used: ${scrub(reasonOf(error))}. Check DATABASE_URL.`,
      { cause: error },
    );

  const outlast = async (step: () => Promise<void> | void, signal?: AbortSignal): Promise<void> => {
    let awaySinceMs: number | undefined;
    const work = async (): Promise<void> => {
      signal?.throwIfAborted();
      try {
        await step();
      } catch (error) {
        throw !signal?.aborted && refusedStates.has(sqlStateOf(error) ?? '') ? unusable(error) : error;
      }
    };
    const delayMs = (failures: number, error: unknown): number => {
      const now = performance.now();
      awaySinceMs ??= now;
      const leftMs = waitMsMax - waitedMs - (now - awaySinceMs);
      if (leftMs <= 0) throw gaveUp(place, waitMsMax, error);
      return Math.min(backoff.firstMs * 2 ** (failures - 1), backoff.maxMs, leftMs);
    };
    await retryDuringOutage(work, { delayMs, signal, onRetry: notice });
    if (awaySinceMs === undefined) return;
    waitedMs += performance.now() - awaySinceMs;
    logger.info({ host, port, database, waited_ms: Math.round(waitedMs) }, 'the database answers');
  };

  const probe = async (signal?: AbortSignal): Promise<void> => {
    let version: string;
    try {
      version = await askVersion({ connectionString, logger, timeoutMs: probeTimeoutMs, signal });
    } catch (error) {
      // Whatever else a first connection meets (no TLS, a certificate that is not trusted), no later one will do better.
      throw isTransient(error) || signal?.aborted ? error : unusable(error);
    }
    assertNewEnough(version, place);
  };

  return {
    part: { name: 'database', start: (signal) => outlast(() => probe(signal), signal) },
    outlasting: (part) => ({ ...part, start: (signal) => outlast(() => part.start?.(signal), signal) }),
  };
}

/** The server's version, by a connection of its own. Throws at once when the signal aborts. */
async function askVersion(options: {
  connectionString: string;
  logger: Logger;
  timeoutMs: number;
  signal: AbortSignal | undefined;
}): Promise<string> {
  const { connectionString, logger, timeoutMs, signal } = options;
  const limits = { connectionTimeoutMs: timeoutMs, statementTimeoutMs: timeoutMs, stallTimeoutMs: timeoutMs };
  const pool = createPool({ connectionString, applicationName: 'sluice-start', max: 1, ...limits }, logger);
  const over = new AbortController();
  const aborted = new Promise<never>((_resolve, reject) => {
    signal?.addEventListener('abort', () => reject(signal.reason as Error), { signal: over.signal });
  });
  try {
    const query = pool.query<{ server_version: string }>('show server_version');
    const { rows } = await Promise.race([query, aborted]);
    return rows[0]?.server_version ?? '';
  } finally {
    over.abort();
    // Not waited for: what hangs ends by its time limits, or with the process.
    void pool.end();
  }
}

/** `version` as PostgreSQL says it: `18.1 (Debian 18.1-1)`, `19beta2`. Throws ConfigurationError. */
export function assertNewEnough(version: string, place: string): void {
  if (Number.parseInt(version, 10) >= serverVersionMin) return;
  throw new ConfigurationError(
    `The database at ${place} is PostgreSQL ${version}; Sluice needs ${serverVersionMin} or newer.`,
  );
}

function gaveUp(place: string, waitMsMax: number, error: unknown): Error {
  return new Error(
    `The database at ${place} did not answer within ${waitMsMax / 1_000} s (SLUICE_DATABASE_WAIT): ${scrub(reasonOf(error))}`,
    { cause: error },
  );
}
