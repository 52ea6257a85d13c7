import { GatewayError } from '#libs/kernel/errors.ts';

/**
 * Refuses to create a key that would already be expired: nearly always a mistake in the date. `now` is the database's clock.
 * (An update can set an expiry in the past to end a key.)
 */
export function refusePastExpiry(expiresAt: Date | null | undefined, now: Date): void {
  if (!expiresAt || expiresAt.getTime() > now.getTime()) return;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    `Invalid 'expires_at': ${expiresAt.toISOString()} is in the past (it is now ${now.toISOString()}). Use a time in the ` +
      'future, in Unix seconds or ISO 8601, or leave it out for a key that does not expire.',
    { param: 'expires_at' },
  );
}
