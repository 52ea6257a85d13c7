import path from 'node:path';
import { createAdminKey } from '#libs/access/create-admin-key.ts';
import { checkMasterKeys, parseMasterKeys, type MasterKeys } from '#libs/access/master-key.ts';
import { rewrapSecrets, type RewrapReport } from '#libs/access/rewrap-secrets.ts';
import { createSecrets } from '#libs/access/secrets.ts';
import { createDatabase } from '#libs/database/pool.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { ConfigurationError, readEnv } from '#libs/kernel/read-env.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { readKeyFile } from '../standalone/key-file.ts';
import { CliConfig } from './config.ts';
import { withMigratedPool } from './migrated-pool.ts';

/** The master keys of SLUICE_MASTER_KEY, or of `master.key` in the data directory. Throws ConfigurationError without one. */
async function readMasterKeys(): Promise<MasterKeys> {
  const config = readEnv(CliConfig);
  const file = path.join(path.resolve(config.SLUICE_DATA_DIR), 'master.key');
  const text = config.SLUICE_MASTER_KEY ?? (await readKeyFile(file));
  if (text !== undefined) return parseMasterKeys(text);
  throw new ConfigurationError(`There is no master key: set SLUICE_MASTER_KEY, or put it into ${file}.`);
}

/** Brings all stored secrets under the newest master key. Throws ConfigurationError when none is that of the database. */
export async function rewrapKeys(
  { connectionString, onProgress }: { connectionString: string; onProgress: (rewrapped: number) => void },
  logger: Logger,
): Promise<RewrapReport> {
  const masterKeys = await readMasterKeys();
  return await withMigratedPool({ connectionString, applicationName: 'sluice-keys' }, logger, async (pool) => {
    const db = createDatabase(pool);
    await checkMasterKeys(db, masterKeys);
    return await rewrapSecrets({ db, secrets: createSecrets({ masterKeys }), masterKeys, onProgress });
  });
}

/** What came of a rewrap in words, one line each. */
export function describeRewrap({ rewrapped, left }: RewrapReport): string[] {
  const lines = [`${rewrapped} secrets rewrapped`];
  const rest = Object.entries(left).map(([id, count]) => `  ${count} need the master key with the id ${id}`);
  return rest.length === 0
    ? [...lines, 'done: every secret is under the newest master key; older ones can be removed from SLUICE_MASTER_KEY']
    : [...lines, 'not done: some secrets are still under another key, which SLUICE_MASTER_KEY has to hold:', ...rest];
}

/** Makes an admin key for a workspace (id or name; null: the only one), for whoever may use the database. */
export async function makeAdminKey(
  { connectionString, workspace, name }: { connectionString: string; workspace: string | null; name: string },
  logger: Logger,
): Promise<{ id: string; workspaceId: string; key: Secret }> {
  return await withMigratedPool({ connectionString, applicationName: 'sluice-keys' }, logger, (pool) => {
    const db = createDatabase(pool);
    const metadata = { actor: { type: 'system' as const, id: 'cli' } };
    return createAdminKey({ db, eventLog: createEventLog(db) }, { workspace, name, metadata });
  });
}
