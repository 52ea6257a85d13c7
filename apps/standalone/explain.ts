import { GatewayError } from '#libs/kernel/errors.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { StartError } from './start-error.ts';

/** A reason that is meant for people as it is, or everything there is to find a bug. */
export function explain(error: unknown): string {
  const isExpected = [StartError, ConfigurationError, GatewayError].some((kind) => error instanceof kind);
  if (!(error instanceof Error)) return String(error);
  if (!isExpected) return error.stack ?? error.message;
  // A GatewayError's message is for callers, who must not learn more; here the operator asks.
  return error instanceof GatewayError && error.cause instanceof Error
    ? `${error.message} (${error.cause.message})`
    : error.message;
}
