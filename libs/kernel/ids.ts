import { randomBytes } from 'node:crypto';

// The prefixes that SDK users know (ID-1) and ours in the same form.
export type IdPrefix =
  | 'batch_'
  | 'file-'
  | 'ftjob-'
  | 'ws_'
  | 'key_'
  | 'vk_'
  | 'config_'
  | 'req_'
  | 'batch_req_'
  | 'secret_';

/** A random id: prefix and 32 hex digits (128 bits, so that ids cannot be guessed or collide). */
export function newId<Prefix extends IdPrefix>(prefix: Prefix): `${Prefix}${string}` {
  return `${prefix}${randomBytes(16).toString('hex')}`;
}
