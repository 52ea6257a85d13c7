import { randomBytes } from 'node:crypto';
import path from 'node:path';
import { createGatewayKey } from '#libs/identity/gateway-key.ts';
import { parseMasterKeys } from '#libs/secrets/master-key.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { StandaloneConfig } from './config.ts';
import type { Installation } from './database.ts';
import { readKeyFile, writeKeyFile } from './files/key-file.ts';
import { StartError } from './start-error.ts';

export type Keys = {
  masterKey: Secret;
  /** `file` is absent if the key is SLUICE_BOOTSTRAP_KEY. undefined: there are keys, but none is stored here. */
  adminKey: { value: Secret; file: string | undefined } | undefined;
};

/**
 * The two keys of an installation, from the environment or from their files in the data directory. A key is generated
 * only if the database has none yet, and is on disk before a process uses it, so that no crash can lose it. If an
 * operator removes `admin.key` (the key stays valid), the next starts do not create a new one. Throws StartError if
 * stored secrets need a master key that is missing.
 */
export async function prepareKeys(config: StandaloneConfig, installation: Installation): Promise<Keys> {
  return {
    masterKey: await prepareMasterKey(config, installation),
    adminKey: await prepareAdminKey(config, installation),
  };
}

async function prepareMasterKey(config: StandaloneConfig, { hasMasterKey }: Installation): Promise<Secret> {
  if (config.SLUICE_MASTER_KEY !== undefined) return new Secret(config.SLUICE_MASTER_KEY);
  const file = path.join(config.dataDir, 'master.key');
  const kept = await readKeyFile(file);
  if (kept !== undefined) {
    parseMasterKeys(kept);
    return new Secret(kept);
  }
  if (hasMasterKey) {
    throw new StartError(
      `The master key file ${file} is missing. Without it the provider credentials in the database cannot be decrypted. ` +
        'Restore the file, or set SLUICE_MASTER_KEY.',
    );
  }
  const made = randomBytes(32).toString('base64');
  await writeKeyFile(file, made);
  return new Secret(made);
}

async function prepareAdminKey(config: StandaloneConfig, { hasWorkspace }: Installation): Promise<Keys['adminKey']> {
  if (config.SLUICE_BOOTSTRAP_KEY !== undefined)
    return { value: new Secret(config.SLUICE_BOOTSTRAP_KEY), file: undefined };
  const file = path.join(config.dataDir, 'admin.key');
  const kept = await readKeyFile(file);
  if (kept !== undefined) return { value: new Secret(kept), file };
  if (hasWorkspace) return undefined;
  const made = createGatewayKey();
  await writeKeyFile(file, made.reveal());
  return { value: made, file };
}
