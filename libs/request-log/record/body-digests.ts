import { createHash, randomBytes, type Hash } from 'node:crypto';
import type { RequestLogEntry } from '../row/log-entry.ts';

/** The columns with the salted SHA-256 of a call's bodies. `docs/logs.md` shows how they are checked. */
export type BodyDigests = Pick<RequestLogEntry, 'sha256_salt' | 'request_sha256' | 'answer_sha256'>;

/** Each call has its own salt, so that equal bodies cannot be recognised. */
export const newSalt = (): Buffer => randomBytes(16);

/** Returns the hash of `salt || bytes`, to which the bytes are added as they pass. */
export const startDigest = (salt: Buffer): Hash => createHash('sha256').update(salt);

/** Returns the digests of bodies in memory. Pass null for a body that does not exist. */
export function digestBodies(request: Buffer | null, answer: Buffer | null): BodyDigests {
  const salt = newSalt();
  const digest = (bytes: Buffer | null): string | null => bytes && startDigest(salt).update(bytes).digest('hex');
  return { sha256_salt: salt.toString('hex'), request_sha256: digest(request), answer_sha256: digest(answer) };
}
