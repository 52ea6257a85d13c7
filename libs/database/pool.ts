import { AsyncLocalStorage } from 'node:async_hooks';
import {
  CompiledQuery,
  Kysely,
  PostgresDialect,
  PostgresDriver,
  type DatabaseConnection,
  type Driver,
  type PostgresDialectConfig,
} from 'kysely';
import pg from 'pg';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { CommitOutcomeUnknownError, isConnectionLost, isTransient, wasNeverSent } from './database-error.ts';
import type { Database } from './schema.ts';
import { createSilenceWatch } from './silence-watch.ts';

export type PoolOptions = {
  connectionString: string;
  /**
   * The address of Postgres itself, if `connectionString` is that of a pooler in transaction mode. Sessions then have the
   * settings of their role, which a start checks (database-address.ts), instead of the limits below.
   */
  directUrl?: string | undefined;
  /** Shown in pg_stat_activity, so that an operator can distinguish processes. */
  applicationName: string;
  /**
   * The maximum of connections. Further callers wait for `connectionTimeoutMs`. Default 10: many short transactions
   * share a few.
   */
  max?: number;
  /** How long a caller waits for a new or free connection before it gets `unavailable`. Default 4 s. */
  connectionTimeoutMs?: number;
  /** The maximum duration of a statement. Default 30 s; 0 disables the limit (rebuild, long COPY). */
  statementTimeoutMs?: number;
  /**
   * After this silence of a waiting query, the server is queried over another connection, and the query is given up if
   * that does not answer either. Default 2 s; no limit if statements have none.
   */
  silenceMs?: number;
  /** The timeout of that other connection. Default 1.5 s, so that a client with a timeout of 5 s gets an answer. */
  askMs?: number;
  /** The longest silence of the server while a query waits. Default: statementTimeoutMs plus 5 s; no limit without that. */
  stallTimeoutMs?: number;
  /**
   * The longest wait for a lock. Default 5 s, after which a repeated command gets an error that asks it to retry later.
   */
  lockTimeoutMs?: number;
  /** The longest pause inside a transaction. Default 15 s: an open transaction stalls every subscriber of the log. */
  idleInTransactionTimeoutMs?: number;
  /** The longest transaction. Default 60 s, for the same reason. Servers before PostgreSQL 17 ignore it. */
  transactionTimeoutMs?: number;
  /** When an unused connection is closed. Default 30 s. */
  idleTimeoutMs?: number;
};

/**
 * A connection pool that survives its server. If Postgres is killed, a session is terminated, or a network drops
 * packets, the queries in flight fail (see database-error.ts) and are logged. The process continues, and the next query
 * reconnects. Values are converted as in value-types.ts. Sessions use UTC and the time limits of the options.
 *
 * The limits are set by a statement on each new connection and not as startup parameters, because PgBouncer rejects
 * those, and PostgreSQL 15 and 16 reject a session with an unknown setting. In transaction mode, a pooler would pass the
 * session with its limits on to other clients.
 *
 * Throws ConfigurationError if the connection string is not a postgres:// URL; its message does not quote the string.
 */
export function createPool(options: PoolOptions, logger: Logger): pg.Pool {
  assertPostgresUrl(options.connectionString);
  const statementTimeoutMs = options.statementTimeoutMs ?? sessionLimits.statement_timeout;
  const stallTimeoutMs = options.stallTimeoutMs ?? (statementTimeoutMs > 0 ? statementTimeoutMs + 5_000 : 0);
  const watchSilence = createSilenceWatch({
    connectionString: options.connectionString,
    directUrl: options.directUrl,
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
      // pg-pool removes its own listener while a client is checked out. Without this one, a connection that dies
      // between two queries of a transaction would end the process. The caller notices it at its next query or release.
      client.on('error', (error) => logger.warn({ err: error, application: options.applicationName }, 'session lost'));
      if (stallTimeoutMs > 0) watchSilence(client);
      if (options.directUrl === undefined) await client.query(settings);
    },
  });
  // pg-pool emits the error of a lost idle client here too, and without a listener the process would end. Already logged.
  pool.on('error', () => {});
  // Excludes the password from the printed pool.
  Object.defineProperty(pool.options, 'connectionString', { enumerable: false });
  return pool;
}

function assertPostgresUrl(connectionString: string): void {
  const protocol = URL.canParse(connectionString) ? new URL(connectionString).protocol : '';
  if (protocol === 'postgres:' || protocol === 'postgresql:') return;
  throw new ConfigurationError('The database URL must have the form postgres://user:password@host:port/database.');
}

/** The default limits of a session, in milliseconds. */
export const sessionLimits = {
  statement_timeout: 30_000,
  lock_timeout: 5_000,
  idle_in_transaction_session_timeout: 15_000,
  transaction_timeout: 60_000,
} as const;

/** One statement, in one round trip, which skips settings that this server does not know. */
function sessionSettings(options: PoolOptions & { statementTimeoutMs: number }): pg.QueryConfig {
  const wanted = {
    timezone: 'UTC',
    statement_timeout: String(options.statementTimeoutMs),
    lock_timeout: String(options.lockTimeoutMs ?? sessionLimits.lock_timeout),
    idle_in_transaction_session_timeout: String(
      options.idleInTransactionTimeoutMs ?? sessionLimits.idle_in_transaction_session_timeout,
    ),
    transaction_timeout: String(options.transactionTimeoutMs ?? sessionLimits.transaction_timeout),
  };
  return {
    text: `select set_config(name, value, false) from unnest($1::text[], $2::text[]) as wanted(name, value)
           where current_setting(name, true) is not null`,
    values: [Object.keys(wanted), Object.values(wanted)],
  };
}

/**
 * Checks out a client of the pool, which the caller must release. Throws GatewayError `unavailable`, with the reason as
 * `cause`, if the server is unreachable or no connection became free in time.
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

/** The driver's own connection. The driver can only discard and release that one. */
export type OwnConnection = Parameters<PostgresDriver['rollbackTransaction']>[0];
type Settings = Parameters<PostgresDriver['beginTransaction']>[1];

/**
 * Kysely on the pool. If the connection is lost during COMMIT, the transaction fails with CommitOutcomeUnknownError. If
 * it is lost earlier, the transaction fails with that first error and not with the error of the ROLLBACK after it.
 * `destroy()` ends the pool. `createDriver` can replace the driver.
 */
export function createDatabase(
  pool: pg.Pool,
  createDriver: (config: PostgresDialectConfig) => Driver = (config) => new OutcomeAwareDriver(config),
): Kysely<Database> {
  const config: PostgresDialectConfig = {
    pool: { connect: () => acquireClient(pool), end: () => pool.end(), options: pool.options },
    controlClient: pg.Client,
  };
  const dialect = new PostgresDialect(config);
  dialect.createDriver = () => createDriver(config);
  return new Kysely<Database>({ dialect });
}

const openings = new AsyncLocalStorage<{ statement: string | null }>();

/**
 * Runs `work`, whose next transaction begins with a statement in the same round trip. The statement has no parameters, and
 * its result is not read.
 */
export const beginningWith = <Result>(statement: string, work: () => Result): Result =>
  openings.run({ statement }, work);

/** Kysely's driver, extended by first statements, and by whether a transaction is known to have failed. */
export class OutcomeAwareDriver extends PostgresDriver {
  override async beginTransaction(connection: DatabaseConnection, settings: Settings): Promise<void> {
    await this.beginAnd([], connection, settings);
  }

  /** Begins a transaction and runs further statements, in one round trip. */
  protected async beginAnd(
    further: readonly string[],
    connection: DatabaseConnection,
    settings: Settings,
  ): Promise<void> {
    const opening = openings.getStore();
    const first = opening?.statement ?? null;
    if (opening !== undefined) opening.statement = null;
    const statements = [...(first === null ? [] : [first]), ...further];
    const joined: DatabaseConnection = {
      executeQuery: (query) => connection.executeQuery(CompiledQuery.raw([query.sql, ...statements].join('; '))),
      streamQuery: (query, chunkSize) => connection.streamQuery(query, chunkSize),
    };
    try {
      await super.beginTransaction(joined, settings);
    } catch (error) {
      // "begin" may have succeeded although a further statement failed. No other code would end the transaction.
      if (statements.length > 0) await this.rollbackTransaction(connection as OwnConnection);
      throw error;
    }
  }

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
      await super.rollbackTransaction(connection); // On failure, this also marks the connection to be discarded.
    } catch (error) {
      // Kysely would report this error instead of the original one. The server rolls back a session that has ended.
      if (!isConnectionLost(error)) throw error;
    }
  }
}

const oid = { int8: 20, int8Array: 1016, int4Array: 1007, int2Array: 1005, date: 1082, dateArray: 1182 } as const;

/**
 * A bigint column as a number. Positions, byte counts and token counts stay far below 2^53. A larger value is a bug,
 * which must cause an error instead of being rounded.
 */
function toSafeInteger(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`The bigint ${text} does not fit a JavaScript number.`);
  return value;
}

/** Results of batches are rows with an element for each line. pg reads an element in 0.2 µs, JSON in 0.01. */
const parseIntegerArray = (text: string): (number | null)[] =>
  plainIntegerArray.test(text) ? (JSON.parse(`[${text.slice(1, -1)}]`) as number[]) : parseAnyIntegerArray(text);
const plainIntegerArray = /^\{[\d,-]+\}$/;
const parseAnyIntegerArray = pg.types.getTypeParser(
  oid.int4Array as Parameters<typeof pg.types.getTypeParser>[0],
  'text',
) as (text: string) => (number | null)[];

const textArray = 1009 as Parameters<typeof pg.types.getTypeParser>[0];
const parseTextArray = pg.types.getTypeParser(textArray, 'text') as (text: string) => (string | null)[];

/**
 * How values of Postgres are converted, for our pools only (nothing global is changed): int8 → number (an unsafe integer is
 * an error); date → 'YYYY-MM-DD' (pg would use local midnight, which is another day elsewhere); timestamptz → Date;
 * numeric, xid8 → text; jsonb → parsed; bytea → Buffer.
 */
const valueTypes: pg.CustomTypesConfig = {
  // With pg's default settings the result format is always text; pg handles binary itself.
  getTypeParser: ((typeId: number, format: 'text' | 'binary' = 'text') => {
    if (format === 'text') {
      if (typeId === oid.int8) return toSafeInteger;
      if (typeId === oid.int8Array) {
        return (text: string) => parseTextArray(text).map((item) => (item === null ? null : toSafeInteger(item)));
      }
      if (typeId === oid.int4Array || typeId === oid.int2Array) return parseIntegerArray;
      if (typeId === oid.date) return (text: string) => text;
      if (typeId === oid.dateArray) return parseTextArray;
    }
    return pg.types.getTypeParser(typeId, format);
  }) as typeof pg.types.getTypeParser,
};
