import path from 'node:path';
import { createAdminKey } from '#libs/people/create-admin-key.ts';
import {
  checkMasterKeys,
  countSecrets,
  forgetMasterKeyCheck,
  parseMasterKeys,
  type MasterKeys,
  type SecretsByMasterKey,
} from '#libs/secrets/master-key.ts';
import { rewrapSecrets, type RewrapReport } from '#libs/secrets/rewrap-secrets.ts';
import { createSecrets } from '#libs/secrets/secrets.ts';
import { createDatabase } from '#libs/database/pool.ts';
import { raiseEpochAfterRestore } from '#libs/event-log/epoch.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError, readEnv } from '#libs/kernel/read-env.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { assertAlone } from './running-processes.ts';
import { readKeyFile } from '../../standalone/files/key-file.ts';
import { CliConfig } from './config.ts';
import { withMigratedPool } from './migrated-pool.ts';

/** The master keys of SLUICE_MASTER_KEY, or of `master.key` in the data directory. Throws ConfigurationError without one. */
export async function readMasterKeys(): Promise<MasterKeys> {
  const config = readEnv(CliConfig);
  const file = path.join(path.resolve(config.SLUICE_DATA_DIR), 'master.key');
  const text = config.SLUICE_MASTER_KEY ?? (await readKeyFile(file));
  if (text !== undefined) return parseMasterKeys(text);
  throw new ConfigurationError(`There is no master key. Set SLUICE_MASTER_KEY, or put the key into ${file}.`);
}

/**
 * Encrypts all stored secrets with the newest master key. Throws ConfigurationError if none of the given keys is the one
 * that the database was set up with.
 */
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

/** The result of a rewrap as text, one line each. */
export function describeRewrap({ rewrapped, left }: RewrapReport): string[] {
  const lines = [`${rewrapped} secrets encrypted with the newest master key`];
  const rest = Object.entries(left).map(([id, count]) => `  ${count} need the master key with the id ${id}`);
  return rest.length === 0
    ? [
        ...lines,
        'done: all secrets use the newest master key; you can remove older ones from SLUICE_MASTER_KEY or master.key',
      ]
    : [...lines, 'not done: some secrets need a key that is missing from SLUICE_MASTER_KEY or master.key:', ...rest];
}

/**
 * Lets the database accept another master key, because the one before is lost. Returns how many secrets nobody can read then,
 * by the id of the key that they need. Throws ConfigurationError while a process of Sluice runs: it still has the key.
 */
export async function forgetMasterKey(connectionString: string, logger: Logger): Promise<SecretsByMasterKey> {
  const applicationName = 'sluice-keys';
  return await withMigratedPool({ connectionString, applicationName }, logger, async (pool) => {
    const db = createDatabase(pool);
    await assertAlone(db, applicationName);
    await forgetMasterKeyCheck(db);
    return await countSecrets(db);
  });
}

/** Creates an admin key for a workspace, given by id or name; null means the only one. */
export async function makeAdminKey(
  { connectionString, workspace, name }: { connectionString: string; workspace: string | null; name: string },
  logger: Logger,
): Promise<{ id: string; workspaceId: string; key: Secret }> {
  return await withMigratedPool({ connectionString, applicationName: 'sluice-keys' }, logger, async (pool) => {
    const db = createDatabase(pool);
    await raiseEpochAfterRestore(db); // it may be what runs first after a restore
    const metadata = { actor: { type: 'system' as const, id: 'cli' } };
    return await createAdminKey({ db, eventLog: createEventLog(db) }, { workspace, name, metadata });
  });
}
