import { Kysely, PostgresDialect, PostgresDriver, type Driver, type PostgresDialectConfig } from 'kysely';
import pg from 'pg';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { CommitOutcomeUnknownError, isConnectionLost, isTransient, wasNeverSent } from './database-error.ts';
import type { Database } from './schema.ts';
import { createSilenceWatch } from './silence-watch.ts';
import { valueTypes } from './value-types.ts';

export type PoolOptions = {
  connectionString: string;
  /** Shown in pg_stat_activity, so that an operator can tell the processes apart. */
  applicationName: string;
  /** Connections at most; further callers wait `connectionTimeoutMs`. Default 10: many short transactions share few. */
  max?: number;
  /** How long a caller waits for a connection, new or free, before it is told `unavailable`. Default 4 s. */
  connectionTimeoutMs?: number;
  /** The longest single statement. Default 30 s; 0 is no limit (rebuild, long COPY). */
  statementTimeoutMs?: number;
  /**
   * A query that has waited in silence for this long is given up when the server does not answer another connection
   * either. Default 2 s, and no limit without one of statements.
   */
  silenceMs?: number;
  /** How long that other connection may take. Default 1.5 s: with the silence, and a client that waits 5 s, in time. */
  askMs?: number;
  /** The longest silence of the server while a query waits. Default: 5 s over statementTimeoutMs, no limit without. */
  stallTimeoutMs?: number;
  /** The longest wait for a lock. Default 5 s: a twin of a command in progress is then told to come back. */
  lockTimeoutMs?: number;
  /** The longest pause inside a transaction. Default 15 s: a forgotten writer stalls every subscriber of the log. */
  idleInTransactionTimeoutMs?: number;
  /** The longest transaction. Default 60 s, same reason; ignored by servers before PostgreSQL 17. */
  transactionTimeoutMs?: number;
  /** An unused connection is closed after this. Default 30 s. */
  idleTimeoutMs?: number;
};

/**
 * A connection pool that survives its server: a killed Postgres, a terminated session or a network that swallows
 * packets fail the queries in flight (see database-error.ts) and are logged, but never end the process, and the next
 * query connects again. Values are read as value-types.ts says; sessions run in UTC under the time limits of the options.
 *
 * The limits are set by a statement on each new connection, not as startup parameters: PgBouncer refuses those, and
 * PostgreSQL 15 and 16 refuse to start a session with a setting they do not know.
 *
 * Throws ConfigurationError when the connection string is not a postgres:// URL (the text never quotes it).
 */
export function createPool(options: PoolOptions, logger: Logger): pg.Pool {
  assertPostgresUrl(options.connectionString);
  const statementTimeoutMs = options.statementTimeoutMs ?? 30_000;
  const stallTimeoutMs = options.stallTimeoutMs ?? (statementTimeoutMs > 0 ? statementTimeoutMs + 5_000 : 0);
  const watchSilence = createSilenceWatch({
    connectionString: options.connectionString,
    applicationName: options.applicationName,
    silenceMs: Math.min(options.silenceMs ?? 2_000, stallTimeoutMs),
    askMs: options.askMs ?? 1_500,
    silenceMsMax: stallTimeoutMs,
  });
  const settings = sessionSettings({ ...options, statementTimeoutMs });

  const pool = new pg.Pool({
    connectionString: options.connectionString,
    application_name: options.applicationName,
    max: options.max ?? 10,
    connectionTimeoutMillis: options.connectionTimeoutMs ?? 4_000,
    idleTimeoutMillis: options.idleTimeoutMs ?? 30_000,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    types: valueTypes,
    onConnect: async (client) => {
      // pg-pool takes its own listener off while a client is checked out; without this one, a connection that dies
      // between two queries of a transaction would end the process. The query or the release tells the caller.
      client.on('error', (error) => logger.warn({ err: error, application: options.applicationName }, 'session lost'));
      if (stallTimeoutMs > 0) watchSilence(client);
      await client.query(settings);
    },
  });
  // pg-pool repeats a lost idle client's error here, where an absent listener would end the process. Logged above.
  pool.on('error', () => {});
  // Keeps the password out of anything that prints the pool.
  Object.defineProperty(pool.options, 'connectionString', { enumerable: false });
  return pool;
}

function assertPostgresUrl(connectionString: string): void {
  const protocol = URL.canParse(connectionString) ? new URL(connectionString).protocol : '';
  if (protocol === 'postgres:' || protocol === 'postgresql:') return;
  throw new ConfigurationError('The database URL must be of the form postgres://user:password@host:port/database.');
}

/** One statement, in one round trip, that passes over the settings this server does not know. */
function sessionSettings(options: PoolOptions & { statementTimeoutMs: number }): pg.QueryConfig {
  const wanted = {
    timezone: 'UTC',
    statement_timeout: String(options.statementTimeoutMs),
    lock_timeout: String(options.lockTimeoutMs ?? 5_000),
    idle_in_transaction_session_timeout: String(options.idleInTransactionTimeoutMs ?? 15_000),
    transaction_timeout: String(options.transactionTimeoutMs ?? 60_000),
  };
  return {
    text: `select set_config(name, value, false) from unnest($1::text[], $2::text[]) as wanted(name, value)
           where current_setting(name, true) is not null`,
    values: [Object.keys(wanted), Object.values(wanted)],
  };
}

/**
 * A client of the pool; the caller must release it. Throws GatewayError `unavailable` when the server cannot be reached
 * or no connection became free in time, with the reason as `cause`.
 */
export async function acquireClient(pool: pg.Pool): Promise<pg.PoolClient> {
  try {
    return await pool.connect();
  } catch (error) {
    if (!isTransient(error)) throw error;
    throw new GatewayError(
      'unavailable',
      'database_unavailable',
      'The database is temporarily unavailable. Try again shortly.',
      {
        retryAfterMs: 1_000,
        cause: error,
      },
    );
  }
}

/**
 * Kysely over the pool. A transaction whose connection is lost during COMMIT fails with CommitOutcomeUnknownError, and
 * one whose connection is lost earlier fails with that first error, not with the failure of the ROLLBACK after it.
 * `destroy()` ends the pool.
 */
export function createDatabase(pool: pg.Pool): Kysely<Database> {
  const config: PostgresDialectConfig = {
    pool: { connect: () => acquireClient(pool), end: () => pool.end(), options: pool.options },
    controlClient: pg.Client,
  };
  return new Kysely<Database>({ dialect: new OutcomeAwareDialect(config) });
}

class OutcomeAwareDialect extends PostgresDialect {
  readonly #config: PostgresDialectConfig;

  constructor(config: PostgresDialectConfig) {
    super(config);
    this.#config = config;
  }

  override createDriver(): Driver {
    return new OutcomeAwareDriver(this.#config);
  }
}

class OutcomeAwareDriver extends PostgresDriver {
  override async commitTransaction(connection: Parameters<PostgresDriver['commitTransaction']>[0]): Promise<void> {
    try {
      await super.commitTransaction(connection);
    } catch (error) {
      if (isConnectionLost(error) && !wasNeverSent(error)) throw new CommitOutcomeUnknownError(error);
      throw error;
    }
  }

  override async rollbackTransaction(connection: Parameters<PostgresDriver['rollbackTransaction']>[0]): Promise<void> {
    try {
      await super.rollbackTransaction(connection); // on failure it also marks the connection for discarding
    } catch (error) {
      // Kysely would report this instead of what went wrong. A session that is gone is rolled back by the server.
      if (!isConnectionLost(error)) throw error;
    }
  }
}
