import { sql, type Kysely } from 'kysely';
import { checkMasterKeys, parseMasterKeys } from '#libs/secrets/master-key.ts';
import { startEmbeddedPostgres, type EmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { sleep } from '#libs/kernel/sleep.ts';

export type SupervisedPostgres = {
  /** Its current address, or its last one. */
  url: () => string;
  stop: () => Promise<void>;
};

type Options = {
  dataDir: string;
  logger: Logger;
  onProblem: (text: string) => void;
  /** Cancels the first start. */
  signal: AbortSignal;
  /** Called when it runs again after it died; `moved` if it had to use another port. */
  onRestarted: (moved: boolean) => void;
  backoff?: { firstMs: number; maxMs: number };
};

/**
 * Starts the embedded Postgres and restarts it whenever it dies, without limit: it recovers to its last commit from its
 * write-ahead log, and the other processes wait for it. Throws if the first start fails.
 */
export async function superviseEmbeddedPostgres(options: Options): Promise<SupervisedPostgres> {
  const { dataDir, logger, onProblem, signal, onRestarted, backoff = { firstMs: 100, maxMs: 5_000 } } = options;
  const stopping = new AbortController();
  let recovery = Promise.resolve();
  let server = await startEmbeddedPostgres({ dataDir, logger, signal });

  const watch = (watched: EmbeddedPostgres): void =>
    watched.onExit(({ code, signal }) => {
      onProblem(`the database stopped (${signal ?? `exit code ${code ?? 'unknown'}`}); restarting it`);
      recovery = recover(watched.connectionString);
    });
  const recover = async (oldUrl: string): Promise<void> => {
    for (let attempt = 0; !stopping.signal.aborted; attempt += 1) {
      try {
        server = await startEmbeddedPostgres({ dataDir, logger, signal: stopping.signal });
        watch(server);
        if (!stopping.signal.aborted) onRestarted(server.connectionString !== oldUrl);
        return;
      } catch (error) {
        if (stopping.signal.aborted) return;
        onProblem(`the database could not be started: ${error instanceof Error ? error.message : 'unknown error'}`);
        await sleep(Math.min(backoff.maxMs, backoff.firstMs * 2 ** attempt), stopping.signal);
      }
    }
  };
  watch(server);

  return {
    url: () => server.connectionString,
    async stop() {
      stopping.abort();
      await recovery;
      await server.stop();
    },
  };
}

export type Installation = {
  /** An earlier start has set this database up, so there is an API key. */
  hasWorkspace: boolean;
  /** Stored secrets are encrypted with a master key, which therefore must not be generated again. */
  hasMasterKey: boolean;
};

/** The state of the database after earlier starts. Throws if the database cannot be reached. */
export async function inspectInstallation(databaseUrl: string, logger: Logger): Promise<Installation> {
  return await withDatabase(databaseUrl, logger, async (db) => {
    const has = async (table: string, condition = sql`true`): Promise<boolean> => {
      const known = await sql<{ known: boolean }>`select to_regclass(${table}) is not null as known`.execute(db);
      if (known.rows[0]?.known !== true) return false;
      const found = await sql`select 1 from ${sql.table(table)} where ${condition} limit 1`.execute(db);
      return found.rows.length > 0;
    };
    return {
      hasWorkspace: await has('resource', sql`kind = 'workspace'`),
      hasMasterKey: await has('installation', sql`name = 'master_key_check'`),
    };
  });
}

/** Throws ConfigurationError if the master key is not the one that the database was set up with. */
export async function assertMasterKeyFits(databaseUrl: string, masterKey: Secret, logger: Logger): Promise<void> {
  await withDatabase(databaseUrl, logger, async (db) => {
    await checkMasterKeys(db, parseMasterKeys(masterKey.reveal()));
  });
}

async function withDatabase<Result>(
  databaseUrl: string,
  logger: Logger,
  work: (db: Kysely<Database>) => Promise<Result>,
): Promise<Result> {
  const pool = createPool({ connectionString: databaseUrl, applicationName: 'sluice-standalone', max: 1 }, logger);
  const db = createDatabase(pool);
  try {
    return await work(db);
  } finally {
    await db.destroy();
  }
}
