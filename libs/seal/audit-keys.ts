import { createPrivateKey, hkdfSync, type KeyObject } from 'node:crypto';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { MasterKeys } from '#libs/secrets/master-key.ts';
import { createSigner, type NoteSigner } from './signed-note.ts';

/** The keys that sign checkpoints, under the name of a log. There are several while one is being replaced. */
export type AuditKeys = (name: string) => NoteSigner[];

/**
 * The keys of `SLUICE_AUDIT_KEY`: Ed25519 keys in PEM, each of which signs. Without any, one is derived from each master
 * key. Throws ConfigurationError, without quoting the value, for anything else.
 */
export function createAuditKeys(masterKeys: MasterKeys, pem: Secret | undefined): AuditKeys {
  const keys = pem === undefined ? masterKeys.map(({ key }) => deriveKey(key)) : parseKeys(pem.reveal());
  return (name) => keys.map((key) => createSigner(name, key));
}

/** The beginning of an Ed25519 key in PKCS#8, before its 32 bytes (RFC 8410). */
const pkcs8Prefix = Buffer.from('302e020100300506032b657004220420', 'hex');

function deriveKey(masterKey: KeyObject): KeyObject {
  const seed = Buffer.from(hkdfSync('sha256', masterKey, '', 'sluice audit key v1', 32));
  return createPrivateKey({ key: Buffer.concat([pkcs8Prefix, seed]), format: 'der', type: 'pkcs8' });
}

function parseKeys(pem: string): KeyObject[] {
  const blocks = pem.match(/-----BEGIN PRIVATE KEY-----[^-]+-----END PRIVATE KEY-----/g) ?? [];
  const keys = blocks.map(parseKey);
  if (keys.length > 0 && keys.every((key) => key?.asymmetricKeyType === 'ed25519')) return keys as KeyObject[];
  throw new ConfigurationError(
    'SLUICE_AUDIT_KEY must be one or more Ed25519 private keys in PEM. Generate one with: openssl genpkey -algorithm ed25519',
  );
}

function parseKey(pem: string): KeyObject | null {
  try {
    return createPrivateKey(pem);
  } catch {
    return null;
  }
}
