import { hash, randomBytes } from 'node:crypto';

// The prefixes that users of OpenAI's SDKs know (ID-1), and ours in the form of `batch_`.
type IdPrefix = 'file-' | 'ftjob-' | `${string}_`;

/** A random id: prefix and 32 hex digits (128 bits, so that ids cannot be guessed or collide). */
export function newId<Prefix extends IdPrefix>(prefix: Prefix): `${Prefix}${string}` {
  return `${prefix}${randomBytes(16).toString('hex')}`;
}

/**
 * The ID of a line of a batch: `batch_req_` and 32 hex digits. It is the same each time the line is run, so that a repeat
 * produces the same bytes. The view `request_log` computes it as well.
 */
export function batchLineId(batchId: string, line: number): string {
  return `batch_req_${hash('sha256', `${batchId}:${line}`).slice(0, 32)}`;
}

/** Whether a text has the form of an ID that `newId` makes for a record. No record can have such a slug. */
export const looksLikeId = (text: string): boolean => /^[a-z]+_[0-9a-f]{32}$/.test(text);

const uuidShape = /^[\da-f]{8}-(?:[\da-f]{4}-){3}[\da-f]{12}$/i;

/**
 * The text if it is a UUID; otherwise null, with which Postgres finds no row instead of reporting an error for the
 * cast.
 */
export const uuidOrNull = (text: string): string | null => (uuidShape.test(text) ? text : null);
