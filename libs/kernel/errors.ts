/**
 * What went wrong, in the terms of the domain. HTTP statuses are chosen in one place only
 * (libs/http/error-response.ts), so that no rule below it thinks in statuses.
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
  | 'unsupported_operation'
  | 'provider_failed'
  | 'provider_timeout'
  | 'storage_full'
  | 'unavailable'
  /** A bug, in what is told of a call that has cost something: see `asGatewayError`. */
  | 'internal';

type ErrorDetails = { param?: string | null; retryAfterMs?: number; cause?: unknown; type?: string | null };

/**
 * A refusal that a caller may read: `message` says what was wrong and what would be right, and never holds a secret.
 * Anything else that is thrown is a bug: it is answered with 500 and its text never leaves the process.
 */
export class GatewayError extends Error {
  override readonly name = 'GatewayError';
  readonly kind: ErrorKind;
  readonly code: string | null;
  readonly param: string | null;
  readonly retryAfterMs: number | undefined;
  /** What a provider called it; null: by its kind. */
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
 * What ended a call, as a GatewayError: a bug becomes one of the kind `internal`, with the bug as its cause. For the places
 * that must tell what a call had cost when something failed after it; it is answered as the bug itself would be.
 */
export function asGatewayError(error: unknown): GatewayError {
  if (error instanceof GatewayError) return error;
  const message = 'The gateway failed while it worked on this call.';
  return new GatewayError('internal', 'internal_error', message, { cause: error });
}

/** Marks the branch that the types rule out; a new event type or state then fails to compile, not at night. */
export function assertNever(value: never): never {
  throw new Error(`unexpected value: ${JSON.stringify(value)}`);
}
