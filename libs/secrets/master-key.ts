import { createHash, createHmac, createSecretKey, timingSafeEqual, type KeyObject } from 'node:crypto';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';

/** The key that wraps the data keys of all stored secrets. It exists only in memory, in a form that is not printed. */
export type MasterKey = {
  /** Identifies the key in the rows that it wraps. It is a hash that reveals nothing about the key. */
  id: string;
  key: KeyObject;
};

const keyBytes = 32;
const howToMake = 'Generate one with: openssl rand -base64 32';

/** The first one wraps new secrets; all of them open existing ones. */
export type MasterKeys = readonly [MasterKey, ...MasterKey[]];

// There are two while one is being replaced.
const keysMax = 5;

/**
 * Reads `SLUICE_MASTER_KEY`: one key or several, the newest first, separated by commas or white space; each 32 bytes in
 * base64 (with or without padding, also base64url) or 64 hex digits.
 * Throws ConfigurationError, without quoting the value, for anything else and for a key of one repeated byte.
 */
export function parseMasterKeys(text: string): MasterKeys {
  const [first = '', ...others] = text.split(/[\s,]+/).filter((part) => part !== '');
  const keys: MasterKeys = [parseMasterKey(first), ...others.map(parseMasterKey)];
  if (keys.length <= keysMax) return keys;
  throw new ConfigurationError(`SLUICE_MASTER_KEY can have at most ${keysMax} keys.`);
}

function parseMasterKey(text: string): MasterKey {
  const bytes = decode(text);
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

/** How many stored secrets need which master key, by its id. */
export type SecretsByMasterKey = Readonly<Record<string, number>>;

/**
 * Compares the master keys with the check value of this installation, which one of them has to match. The first process
 * stores the check value of its key. Returns how many secrets need which key. Throws ConfigurationError when no key matches,
 * because the other processes could not read new secrets.
 */
export async function checkMasterKeys(db: Kysely<Database>, masterKeys: MasterKeys): Promise<SecretsByMasterKey> {
  const [newest] = masterKeys;
  await db
    .insertInto('installation')
    .values({ name: checkName, value: checkValueOf(newest) })
    .onConflict((conflict) => conflict.column('name').doNothing())
    .execute();
  return await compareMasterKeys(db, masterKeys);
}

/** The same comparison without storing anything. If no process has stored a check value yet, every key is correct. */
export async function compareMasterKeys(db: Kysely<Database>, masterKeys: MasterKeys): Promise<SecretsByMasterKey> {
  const stored = await db.selectFrom('installation').select('value').where('name', '=', checkName).executeTakeFirst();
  const needed = await countSecrets(db);
  if (!stored || masterKeys.some((key) => isSame(stored.value, checkValueOf(key)))) return needed;
  const missing = Object.entries(needed).map(([id, count]) => `${count} need the key with the ID ${id}`);
  throw new ConfigurationError(
    'SLUICE_MASTER_KEY is not the key that this database was set up with, so its stored provider credentials cannot be ' +
      `read. Start with the original key (npm start stores it in the data directory), or with both the new and the original key. Current keys: ${masterKeys.map(({ id }) => id).join(', ')}. Stored secrets: ${missing.join(', ') || 'none'}.`,
  );
}

/** How many stored secrets each master key has wrapped. */
export async function countSecrets(db: Kysely<Database>): Promise<SecretsByMasterKey> {
  const rows = await db
    .selectFrom('secret')
    .select(({ fn }) => ['master_key_id', fn.countAll<number>().as('secrets')])
    .groupBy('master_key_id')
    .execute();
  return Object.fromEntries(rows.map((row) => [row.master_key_id, row.secrets]));
}

/** Allows only processes that have this key to start from now on. For use when it wraps every secret. */
export async function replaceMasterKeyCheck(db: Kysely<Database>, masterKey: MasterKey): Promise<void> {
  await db
    .updateTable('installation')
    .set({ value: checkValueOf(masterKey) })
    .where('name', '=', checkName)
    .execute();
}

/** Lets the first process to start decide which master key is correct. For use when the previous one is lost. */
export async function forgetMasterKeyCheck(db: Kysely<Database>): Promise<void> {
  await db.deleteFrom('installation').where('name', '=', checkName).execute();
}

const checkValueOf = ({ key }: MasterKey): string =>
  createHmac('sha256', key).update('sluice master key check v1').digest('hex');

const isSame = (stored: string, value: string): boolean =>
  stored.length === value.length && timingSafeEqual(Buffer.from(stored), Buffer.from(value));
