import pg from 'pg';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import { isTransient, reasonOf, getSqlState } from './database-error.ts';
import { checkAddresses, inspectAddress, type InspectedAddress } from './database-address.ts';
import { retryDuringOutage } from './retry-during-outage.ts';

export type DatabaseWaitOptions = {
  connectionString: string;
  /** The address of Postgres itself, if `connectionString` is that of a pooler in transaction mode. */
  directUrl?: string | undefined;
  logger: Logger;
  /** How long all steps of the start together can wait for the database. With 0, a failed step is not repeated. */
  waitMsMax: number;
  /** The first wait between two attempts, doubled each time up to the longest. Default 200 ms and 2 s. */
  backoff?: { firstMs: number; maxMs: number };
  /** Time between two log lines about the wait. Default 5 s. */
  noticeMs?: number;
  /** The longest attempt to connect, and the longest wait for the answer after it. Default 5 s. */
  probeTimeoutMs?: number;
};

export type DatabaseWait = {
  /** The first part that needs the database; it has started when the database answers and can be used. */
  readonly part: Part;
  /**
   * Returns the part with a start that is repeated while the database is unavailable. Only for a start that can be repeated
   * after it failed halfway.
   */
  readonly outlasting: (part: Part) => Part;
};

/** The minimum that is documented for DATABASE_URL. */
const serverVersionMin = 15;
/** Wrong password, user not allowed (pg_hba.conf), no such database: the operator has to change something. */
const refusedStates = new Set(['28P01', '28000', '3D000']);

/**
 * Makes the start of a process wait for an unavailable database: connections that are refused or lost, a host name that
 * is not known yet, timeouts, a server that is starting, stopping or full. It retries with growing waits, and logs
 * host, port and reason at intervals.
 *
 * A start throws ConfigurationError immediately if waiting would not help (a wrong password, no such database, a server
 * that is too old), an Error after `waitMsMax`, and its own error if that is not about the connection.
 */
export function createDatabaseWait(options: DatabaseWaitOptions): DatabaseWait {
  const { connectionString, directUrl, logger, waitMsMax, backoff = { firstMs: 200, maxMs: 2_000 } } = options;
  const { noticeMs = 5_000, probeTimeoutMs = 5_000 } = options;
  const { host, port, database, server } = describeAddress(connectionString);
  let waitedMs = 0;
  let noticedAt = Number.NEGATIVE_INFINITY;

  const notice = (error: unknown): void => {
    if (performance.now() - noticedAt < noticeMs) return;
    noticedAt = performance.now();
    logger.warn({ host, port, database, reason: scrub(reasonOf(error)) }, 'waiting for the database');
  };
  const outlast = async (step: () => Promise<void> | void, signal?: AbortSignal): Promise<void> => {
    let awaySinceMs: number | undefined;
    const work = async (): Promise<void> => {
      signal?.throwIfAborted();
      try {
        await step();
      } catch (error) {
        const isRefused = !(error instanceof ConfigurationError) && refusedStates.has(getSqlState(error) ?? '');
        throw !signal?.aborted && isRefused ? toUnusable(error, 'DATABASE_URL', connectionString) : error;
      }
    };
    const delayMs = (failures: number, error: unknown): number => {
      const now = performance.now();
      awaySinceMs ??= now;
      const leftMs = waitMsMax - waitedMs - (now - awaySinceMs);
      if (leftMs <= 0) throw gaveUp(server, waitMsMax, error);
      return Math.min(backoff.firstMs * 2 ** (failures - 1), backoff.maxMs, leftMs);
    };
    await retryDuringOutage(work, { delayMs, signal, onRetry: notice });
    if (awaySinceMs === undefined) return;
    waitedMs += performance.now() - awaySinceMs;
    logger.info({ host, port, database, waited_ms: Math.round(waitedMs) }, 'the database answers');
  };

  const inspect = async (name: string, url: string, signal?: AbortSignal): Promise<InspectedAddress> => {
    try {
      const inspected = await inspectAddress({ connectionString: url, logger, timeoutMs: probeTimeoutMs, signal });
      assertNewEnough(inspected.version, describeAddress(url).server);
      return inspected;
    } catch (error) {
      // Waiting would not resolve other errors of a first connection (no TLS, an untrusted certificate).
      const canWait = isTransient(error) || signal?.aborted || error instanceof ConfigurationError;
      throw canWait ? error : toUnusable(error, name, url);
    }
  };
  const probe = async (signal?: AbortSignal): Promise<void> => {
    const inspected = await inspect('DATABASE_URL', connectionString, signal);
    const isPooled = directUrl !== undefined;
    checkAddresses(inspected, isPooled ? await inspect('SLUICE_DATABASE_DIRECT_URL', directUrl, signal) : null);
  };

  return {
    part: { name: 'database', start: (signal) => outlast(() => probe(signal), signal) },
    outlasting: (part) => ({ ...part, start: (signal) => outlast(() => part.start?.(signal), signal) }),
  };
}

function describeAddress(connectionString: string) {
  const { host, port, database = '' } = new pg.Client({ connectionString });
  return { host, port, database, server: `${host}:${port}` };
}

function toUnusable(error: unknown, name: string, connectionString: string): ConfigurationError {
  const { database, server } = describeAddress(connectionString);
  return new ConfigurationError(
    `The database "${database}" at ${server} cannot be used: ${scrub(reasonOf(error))}. Check ${name}.`,
    { cause: error },
  );
}

/**
 * `version` in the form of PostgreSQL: `18.1 (Debian 18.1-1)`, `19beta2`. Throws ConfigurationError.
 * @testOnly
 */
export function assertNewEnough(version: string, server: string): void {
  if (Number.parseInt(version, 10) >= serverVersionMin) return;
  throw new ConfigurationError(
    `The database at ${server} is PostgreSQL ${version}; Sluice needs ${serverVersionMin} or newer.`,
  );
}

function gaveUp(server: string, waitMsMax: number, error: unknown): Error {
  return new Error(
    `The database at ${server} did not answer within ${waitMsMax / 1_000} s (SLUICE_DATABASE_WAIT): ${scrub(reasonOf(error))}`,
    { cause: error },
  );
}
