import path from 'node:path';
import type { Kysely } from 'kysely';
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
import type { Database } from '#libs/database/schema.ts';
import { raiseEpochAfterRestore } from '#libs/event-log/epoch.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { ConfigurationError, readEnv } from '#libs/kernel/read-env.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { assertAlone } from './running-processes.ts';
import { readKeyFile } from '../../standalone/files/key-file.ts';
import { operatorMetadata } from './operator-metadata.ts';
import { CliConfig } from './config.ts';

/** The master keys of SLUICE_MASTER_KEY, or of `master.key` in the data directory. Throws ConfigurationError without one. */
export async function readMasterKeys(): Promise<MasterKeys> {
  const config = readEnv(CliConfig);
  const file = path.join(path.resolve(config.SLUICE_DATA_DIR), 'master.key');
  const text = config.SLUICE_MASTER_KEY ?? (await readKeyFile(file));
  if (text !== undefined) return parseMasterKeys(text);
  throw new ConfigurationError(`There is no master key. Set SLUICE_MASTER_KEY, or store the key in ${file}.`);
}

/**
 * Encrypts all stored secrets with the newest master key. Throws ConfigurationError if none of the given keys is the one
 * with which the database was set up.
 */
export async function rewrapKeys(db: Kysely<Database>, onProgress: (rewrapped: number) => void): Promise<RewrapReport> {
  const masterKeys = await readMasterKeys();
  await checkMasterKeys(db, masterKeys);
  return await rewrapSecrets({ db, secrets: createSecrets({ masterKeys }), masterKeys, onProgress });
}

/** The result of a rewrap as lines of text. */
export function describeRewrap({ rewrapped, left }: RewrapReport): string[] {
  const lines = [`${rewrapped} secrets encrypted with the newest master key`];
  const rest = Object.entries(left).map(([id, count]) => `  ${count} need the master key with the ID ${id}`);
  return rest.length === 0
    ? [
        ...lines,
        'done: all secrets use the newest master key; you can remove older ones from SLUICE_MASTER_KEY or master.key',
      ]
    : [...lines, 'not done: some secrets need a key that is missing from SLUICE_MASTER_KEY or master.key:', ...rest];
}

/**
 * Makes the database accept another master key because the previous one is lost. Returns how many secrets can no longer be
 * read, by the ID of the key that they need. Throws ConfigurationError while a process of Sluice runs, because it still has
 * the key.
 */
export async function forgetMasterKey(db: Kysely<Database>, applicationName: string): Promise<SecretsByMasterKey> {
  await assertAlone(db, applicationName);
  await forgetMasterKeyCheck(db);
  return await countSecrets(db);
}

export const describeUnreadable = (unreadable: SecretsByMasterKey): string[] => [
  'the next process that starts can use another master key',
  ...Object.entries(unreadable).map(
    ([id, count]) => `  ${count} secrets need the lost key ${id}; store their credentials again`,
  ),
];

/** Creates an admin key for a workspace, given by ID or name; null means the only one. */
export async function makeAdminKey(
  db: Kysely<Database>,
  { workspace, name }: { workspace: string | null; name: string },
): Promise<{ id: string; workspaceId: string; key: Secret }> {
  await raiseEpochAfterRestore(db); // this command can be the first to run after a restore
  const metadata = operatorMetadata();
  return await createAdminKey({ db, eventLog: createEventLog(db) }, { workspace, name, metadata });
}
