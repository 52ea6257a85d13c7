import { GatewayError } from '#libs/kernel/errors.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { StartError } from './start-error.ts';

/** The message of an error that is meant for people, or the stack of any other error. */
export function explain(error: unknown): string {
  const isExpected = [StartError, ConfigurationError, GatewayError].some((kind) => error instanceof kind);
  if (!(error instanceof Error)) return String(error);
  const code = 'code' in error ? error.code : undefined;
  // 53100: disk_full (PostgreSQL documentation, "PostgreSQL Error Codes").
  if (code === 'ENOSPC' || code === '53100') {
    return `The disk is full: ${error.message}. Free some space, or choose another SLUICE_DATA_DIR.`;
  }
  if (!isExpected) return error.stack ?? error.message;
  // A GatewayError hides its cause from API callers. The operator can see it.
  return error instanceof GatewayError && error.cause instanceof Error
    ? `${error.message} (${error.cause.message})`
    : error.message;
}
