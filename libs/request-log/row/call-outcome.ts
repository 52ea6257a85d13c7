import { sql, type RawBuilder } from 'kysely';
import type { RequestLogEntry } from './log-entry.ts';

// Defines how a call ended, once for JavaScript and once for SQL. All code that counts failures uses these definitions.

/**
 * `refused`: this gateway refused the call, so the provider is not to blame: a budget, a rate, a guardrail, an unknown
 * price, a mistake in the request. `failed`: a provider was called, and there was no successful answer.
 */
export type CallOutcome = 'succeeded' | 'refused' | 'failed';

/** The output guardrails refused an answer of the provider. */
const denied = 446;

/** The code of the error that a call or an attempt ended with, or otherwise its status; null if it succeeded. */
export const getFailureCode = (status: number | null, code: string | null): string | null =>
  code ?? (status === null ? 'no_answer' : status >= 400 ? String(status) : null);

export function classifyCallOutcome({
  status,
  error_code: code,
  attempts,
}: Pick<RequestLogEntry, 'status' | 'error_code' | 'attempts'>): CallOutcome {
  if (getFailureCode(status, code) === null) return 'succeeded';
  return attempts === 0 || status === denied ? 'refused' : 'failed';
}

/**
 * The same rule as `classifyCallOutcome`: a call did not succeed if it has the status of an error, no answer, or an error after a
 * successful status.
 */
export const hasNotSucceeded: RawBuilder<boolean> = sql`(status is null or status >= 400 or error_code is not null)`;
export const wasRefused: RawBuilder<boolean> = sql`(${hasNotSucceeded} and (attempts = 0 or coalesce(status, 0) = ${sql.lit(denied)}))`;
