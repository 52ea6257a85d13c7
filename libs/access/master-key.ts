import { createHash, createHmac, createSecretKey, timingSafeEqual, type KeyObject } from 'node:crypto';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';

/** The key that wraps the data keys of all stored secrets. Lives in memory only, in a form that does not print. */
export type MasterKey = {
  /** Names the key in the rows that it wraps; a hash, from which nothing of the key can be learned. */
  id: string;
  key: KeyObject;
};

const keyBytes = 32;
const howToMake = 'Make one with: openssl rand -base64 32';

/**
 * Reads `SLUICE_MASTER_KEY`: 32 bytes in base64 (with or without padding, also base64url) or 64 hex digits.
 * Throws ConfigurationError, without quoting the value, for anything else and for a key of one repeated byte.
 */
export function parseMasterKey(text: string): MasterKey {
  const bytes = decode(text.trim());
  if (bytes?.length !== keyBytes) {
    throw new ConfigurationError(`SLUICE_MASTER_KEY must be ${keyBytes} bytes in base64 or hex. ${howToMake}`);
  }
  if (bytes.every((byte) => byte === bytes[0])) {
    throw new ConfigurationError(`SLUICE_MASTER_KEY is one repeated byte, not a random key. ${howToMake}`);
  }
  const id = createHash('sha256').update('sluice master key id\0').update(bytes).digest('hex').slice(0, 16);
  return { id, key: createSecretKey(bytes) };
}

function decode(text: string): Buffer | null {
  if (/^[0-9a-f]{64}$/i.test(text)) return Buffer.from(text, 'hex');
  if (/^[A-Za-z0-9+/]{43}=?$|^[A-Za-z0-9_-]{43}=?$/.test(text)) return Buffer.from(text, 'base64');
  return null;
}

const checkName = 'master_key_check';

/**
 * Compares the master key with the check value that this installation keeps; the first process to come stores its own.
 * Throws ConfigurationError when they differ: new secrets would be written that the others cannot read.
 */
export async function checkMasterKey(db: Kysely<Database>, masterKey: MasterKey): Promise<void> {
  const value = createHmac('sha256', masterKey.key).update('sluice master key check v1').digest('hex');
  await db
    .insertInto('installation')
    .values({ name: checkName, value })
    .onConflict((conflict) => conflict.column('name').doNothing())
    .execute();
  const stored = await db.selectFrom('installation').select('value').where('name', '=', checkName).executeTakeFirst();
  if (stored && isSame(stored.value, value)) return;
  throw new ConfigurationError(
    'SLUICE_MASTER_KEY is not the key that this database was set up with, so its stored provider credentials cannot be ' +
      'read. Start with the original key (standalone keeps it in its data directory).',
  );
}

const isSame = (stored: string, value: string): boolean =>
  stored.length === value.length && timingSafeEqual(Buffer.from(stored), Buffer.from(value));
