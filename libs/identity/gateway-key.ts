import { createHash, randomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { Secret } from '#libs/kernel/logging/secret.ts';

// `slk_`, 43 characters for 256 random bits, 6 for their CRC-32, all base62. A double click selects the whole key,
// secret scanners and `scrub` recognise it, and a mistyped or invented key is detected without reading the database.
const prefix = 'slk_';
const randomBytesCount = 32;
const randomLength = 43;
const checksumLength = 6;
const shape = /^slk_[0-9A-Za-z]{49}$/;

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';

/** Returns a new gateway key. With 256 random bits no slow hash is needed, so its SHA-256 is stored. */
export function createGatewayKey(): Secret {
  const random = toBase62(BigInt(`0x${randomBytes(randomBytesCount).toString('hex')}`), randomLength);
  return new Secret(prefix + random + checksumOf(random));
}

/** Returns the SHA-256 of a key in hex, under which it is stored and found. */
export const hashKey = (key: string): string => createHash('sha256').update(key).digest('hex');

/** Whether `createGatewayKey` could have made this text. Such a key does not necessarily exist. */
export function isWellFormedGatewayKey(token: string): boolean {
  if (!shape.test(token)) return false;
  const random = token.slice(prefix.length, prefix.length + randomLength);
  return checksumOf(random) === token.slice(-checksumLength);
}

/** True for any text that begins like a gateway key: such a value is never sent to a provider. */
export const looksLikeGatewayKey = (token: string): boolean => token.startsWith(prefix);

const checksumOf = (random: string): string => toBase62(BigInt(crc32(prefix + random)), checksumLength);

function toBase62(value: bigint, length: number): string {
  let text = '';
  for (let rest = value; text.length < length; rest /= 62n) text = `${alphabet[Number(rest % 62n)] ?? ''}${text}`;
  return text;
}
