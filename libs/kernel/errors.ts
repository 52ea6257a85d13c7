/**
 * The kind of problem, in terms of the domain. Only libs/http/answers/error-response.ts maps kinds to HTTP statuses, so
 * that no code below it depends on them.
 */
export type ErrorKind =
  | 'invalid_request'
  | 'unauthenticated'
  | 'forbidden'
  | 'not_found'
  | 'method_not_allowed'
  | 'conflict'
  | 'payload_too_large'
  | 'unsupported_media_type'
  | 'rate_limited'
  | 'quota_exceeded'
  /** A budget does not have enough left for a call. */
  | 'budget_exceeded'
  | 'unsupported_operation'
  | 'provider_failed'
  | 'provider_timeout'
  /**
   * Something that the call needs before the provider can be called (a referenced secret) is wrong in its own system.
   */
  | 'dependency_failed'
  | 'storage_full'
  | 'unavailable'
  /** A bug during a call that has to be recorded nevertheless: see `asGatewayError`. */
  | 'internal';

type ErrorDetails = { param?: string | null; retryAfterMs?: number; cause?: unknown; type?: string | null };

/**
 * An error for the caller: `message` explains what was wrong and what would be right, and never contains a secret. Any
 * other error is a bug: it is answered with 500, and its text never leaves the process.
 */
export class GatewayError extends Error {
  override readonly name = 'GatewayError';
  readonly kind: ErrorKind;
  readonly code: string | null;
  readonly param: string | null;
  readonly retryAfterMs: number | undefined;
  /** The error type from a provider; null to derive it from the kind. */
  readonly type: string | null;

  constructor(kind: ErrorKind, code: string | null, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.kind = kind;
    this.code = code;
    this.param = details.param ?? null;
    this.retryAfterMs = details.retryAfterMs;
    this.type = details.type ?? null;
  }
}

/**
 * Returns the error that ended a call as a GatewayError: a bug becomes one of kind `internal`, with the bug as its
 * cause. For code that must record the cost of a call even if a later step failed. The caller gets the same answer as
 * for the bug.
 */
export function asGatewayError(error: unknown): GatewayError {
  if (error instanceof GatewayError) return error;
  const message = 'The gateway failed while it processed this call.';
  return new GatewayError('internal', 'internal_error', message, { cause: error });
}

/** For branches that the types rule out, so that a new event type or state fails to compile instead of at runtime. */
export function assertNever(value: never): never {
  throw new Error(`unexpected value: ${JSON.stringify(value)}`);
}
