import { GatewayError } from '#libs/kernel/errors.ts';

/** The embedded server cannot be used; `message` says why and what to do about it. */
export function embeddedPostgresError(message: string, cause?: unknown): GatewayError {
  return new GatewayError('unavailable', 'embedded_postgres_failed', message, { cause });
}
