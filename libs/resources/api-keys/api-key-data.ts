import { sql, type RawBuilder } from 'kysely';
import type { z } from 'zod';
import type { ApiKeyType } from '#libs/contracts/people/api-keys.ts';
import type { keyRateLimits, usageLimit } from '#libs/contracts/people/limits.ts';
import type { ApiKeyDefaults } from '#libs/database/schema.ts';
import type { Caller } from '#libs/http/caller.ts';

/** Enough to recognise a key and distinguish it from others, but not to use it. */
export type ApiKeyData = {
  name: string;
  description?: string | null;
  /** SHA-256 of the key, hex. */
  digest: string;
  last_four: string;
  /** `<area>.<read|write>`; null for all scopes, including those of later versions. */
  scopes: string[] | null;
  defaults: ApiKeyDefaults;
  /** ISO 8601 with milliseconds, like all times here; null for never. */
  expires_at: string | null;
  /** The owner of the key. Absent: it is a service key of the workspace. */
  type?: ApiKeyType;
  /** Only for keys of a user. */
  user_id?: string;
  /** `auto`: created at startup or by a command, not by a request. */
  creation_mode?: 'auto';
  usage_limits?: z.output<ReturnType<typeof usageLimit>> | null;
  rate_limits?: z.output<ReturnType<typeof keyRateLimits>> | null;
  /** Usage before this time does not count towards `usage_limits`. */
  usage_reset_at?: string;
  alert_emails?: string[] | null;
  allowed_networks?: string[] | null;
  rotation_policy?: {
    rotation_period: 'weekly' | 'monthly' | null;
    next_rotation_at: string | null;
    key_transition_period_ms: number;
  } | null;
  /** When it was recorded that `next_rotation_at` has passed. */
  rotation_due_at?: string | null;
  /** Replaced keys, newest first, and when each of them stops working. */
  previous?: { digest: string; last_four: string; expires_at: string }[];
  /** The digest of the original key, after a rotation: a start with that key must not create it again. */
  first_digest?: string;
  /** The caller who last replaced it, and so knows its value. */
  rotated_by?: string;
  /** The value of the key that created this key's value. */
  made_with?: MadeWith;
};

/** A key and its value at that time, as SHA-256 in hex. A user who signed in with a token has no digest. */
export type MadeWith = { id: string; digest: string | null };

export const madeWith = ({ keyId, keyDigest }: Pick<Caller, 'keyId' | 'keyDigest'>): MadeWith => ({
  id: keyId,
  digest: keyDigest ?? null,
});

/** Epoch milliseconds; Infinity for never. */
export const expiryMs = ({ expires_at: expiresAt }: Pick<ApiKeyData, 'expires_at'>): number =>
  expiresAt === null ? Number.POSITIVE_INFINITY : Date.parse(expiresAt);

/** Whether a value of a key, the current one or a replaced one, works at `nowMs`. */
export function worksStill(data: ApiKeyData, digest: string, nowMs: number): boolean {
  if (expiryMs(data) <= nowMs) return false;
  const previous = data.previous?.find((each) => each.digest === digest);
  return data.digest === digest || (previous !== undefined && Date.parse(previous.expires_at) > nowMs);
}

/**
 * A condition on rows of `resource`: API keys that a principal created or rotated, or that were created or rotated with one
 * of these keys, and so on. Keys that a person creates with a service key do not otherwise carry that person's name.
 */
export const isMadeBy = (principalId: string): RawBuilder<unknown> => sql`id <> ${principalId} and id in (
  with recursive maker as (
    select ${principalId}::text as id
    union select made.id from resource made
      join maker on maker.id in (made.data ->> 'created_by', made.data ->> 'rotated_by') where made.kind = 'api_key'
  ) select id from maker)`;
