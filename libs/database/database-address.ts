import pg from 'pg';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import { createPool, sessionLimits } from './pool.ts';

// A pooler in transaction mode, such as PgBouncer, gives a client a session for one transaction only. Sluice can use one
// for all transactions. LISTEN, session locks, temporary tables and settings of a session need Postgres itself.

export type InspectedAddress = {
  version: string;
  /** Two clients got the same session, so that the address is that of a pooler in transaction mode. */
  sharesSessions: boolean;
  role: string;
  database: string;
  /** Differs between two databases, and after a restart of the server. */
  place: string;
  /** The settings of `requiredSettings` that this server has, in milliseconds. */
  settings: Record<string, string>;
};

const requiredSettings = ['timezone', ...Object.keys(sessionLimits)];

type Row = Omit<InspectedAddress, 'sharesSessions'> & { pid: number };

/** Connects to an address of the database. Throws Postgres's error, or immediately if the signal aborts. */
export async function inspectAddress(options: {
  connectionString: string;
  logger: Logger;
  timeoutMs: number;
  signal: AbortSignal | undefined;
}): Promise<InspectedAddress> {
  const { connectionString, logger, timeoutMs, signal } = options;
  const limits = { connectionTimeoutMs: timeoutMs, statementTimeoutMs: timeoutMs, stallTimeoutMs: timeoutMs };
  // With `directUrl`, no settings are made, because this could be a pooler that would pass them on.
  const names = { connectionString, directUrl: connectionString, applicationName: 'sluice-start' };
  const pool = createPool({ ...names, max: 2, ...limits }, logger);
  try {
    const inspecting = inspect(pool);
    return await (signal
      ? untilAborted(inspecting, signal, () => {
          throw signal.reason;
        })
      : inspecting);
  } finally {
    // Not awaited: a hanging connection ends by its time limits, or with the process.
    void pool.end();
  }
}

async function inspect(pool: pg.Pool): Promise<InspectedAddress> {
  const first = await pool.connect();
  const second = await pool.connect().catch((error: unknown) => {
    first.release(true);
    throw error;
  });
  try {
    const [row] = await readRows(first);
    const pids = new Set<number>();
    // Several times, because another client can get the session in between.
    for (let round = 0; round < 3; round += 1) {
      for (const { pid } of await readRows(first)) pids.add(pid);
      for (const { pid } of await readRows(second)) if (pids.has(pid)) return { ...(row as Row), sharesSessions: true };
    }
    return { ...(row as Row), sharesSessions: false };
  } finally {
    first.release();
    second.release();
  }
}

async function readRows(client: pg.PoolClient): Promise<Row[]> {
  const { rows } = await client.query<Row>(
    `select pg_backend_pid() as pid, current_setting('server_version') as version, current_user::text as role,
       current_database()::text as database, pg_postmaster_start_time()::text || ' ' || pg_database.oid as place,
       (select json_object_agg(lower(name), setting) from pg_settings where lower(name) = any($1)) as settings
     from pg_database where datname = current_database()`,
    [requiredSettings],
  );
  return rows;
}

/**
 * Throws ConfigurationError if DATABASE_URL is a pooler in transaction mode and `direct` (null: none is set) is missing or
 * unsuitable, or if the role does not have the settings that sessions of a pooler need.
 */
export function checkAddresses(given: InspectedAddress, direct: InspectedAddress | null): void {
  const isPooled = 'is the address of a pooler in transaction mode';
  const change = 'Set SLUICE_DATABASE_DIRECT_URL to the address of Postgres itself (docs/deploy.md#pgbouncer).';
  if (direct === null) {
    if (given.sharesSessions) throw new ConfigurationError(`DATABASE_URL ${isPooled}. ${change}`);
    return;
  }
  if (direct.sharesSessions) throw new ConfigurationError(`SLUICE_DATABASE_DIRECT_URL ${isPooled}. ${change}`);
  if (given.place !== direct.place || given.role !== direct.role) {
    throw new ConfigurationError(
      'DATABASE_URL and SLUICE_DATABASE_DIRECT_URL must point to the same database and use the same role.',
    );
  }
  const missing = missingSettings(given);
  if (missing.length === 0) return;
  const target = `role ${pg.escapeIdentifier(given.role)} in database ${pg.escapeIdentifier(given.database)}`;
  const statements = missing.map(([name, value]) => `  alter ${target} set ${name} = '${value}';`);
  throw new ConfigurationError(
    `The sessions of the pooler lack settings. Run these statements on Postgres itself as this role, then RECONNECT in ` +
      `PgBouncer (docs/deploy.md#pgbouncer):\n${statements.join('\n')}`,
  );
}

function missingSettings({ settings }: InspectedAddress): (readonly [string, string])[] {
  const limits = Object.entries(sessionLimits).map(([name, ms]) => [name, `${ms / 1_000}s`] as const);
  return [
    ...(/^(?:Etc\/)?UTC$/i.test(settings['timezone'] ?? '') ? [] : [['timezone', 'UTC'] as const]),
    // Other limits are the operator's choice. Servers before PostgreSQL 17 have no transaction_timeout.
    ...limits.filter(([name]) => settings[name] === '0'),
  ];
}
