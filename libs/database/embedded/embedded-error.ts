import { GatewayError } from '#libs/kernel/errors.ts';

/** The embedded server cannot be used. `message` explains the reason and the fix. */
export function embeddedPostgresError(message: string, cause?: unknown): GatewayError {
  return new GatewayError('unavailable', 'embedded_postgres_failed', message, { cause });
}
