// This is the only place that decides which Postgres errors can be retried. SQLSTATEs: PostgreSQL documentation,
// appendix A.

/** The session has ended: shutdown, crash, start-up, or an idle timeout that ends the session. */
const sessionEndedStates = new Set(['57P01', '57P02', '57P03', '57P05', '25P03', '25P04']);
/** Serialization failure, deadlock, too many connections: the same statement can succeed when it is repeated. */
const retryStates = new Set(['40001', '40P01', '53300']);

const networkCodes = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ECONNABORTED',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'EAI_AGAIN',
  // While a container restarts, its name does not resolve.
  'ENOTFOUND',
]);

// Errors of pg without a code (pg/lib/client.js, pg-pool/index.js; pg 8.23).
const lostTexts = ['Connection terminated', 'timeout expired', 'Query read timeout', 'server closed the connection'];
const notSentTexts = [
  'Client has encountered a connection error and is not queryable',
  'Client was closed and is not queryable',
  'Postgres connection has been discarded', // From Kysely, after a ROLLBACK that failed.
];
const poolBusyText = 'timeout exceeded when trying to connect';
const connectTimeoutTexts = [poolBusyText, 'timeout expired', 'Connection terminated due to connection timeout'];

/** The code of a query that was given up because the server stopped answering (silence-watch.ts). */
export const connectionSilentCode = 'ETIMEDOUT';

/** Yields the error, its causes, and the parts of an AggregateError (a host name with several addresses), to a fixed depth. */
function* causes(error: unknown, depth = 0): Generator<Error> {
  if (!(error instanceof Error) || depth > 5) return;
  yield error;
  if (error instanceof AggregateError) for (const part of error.errors) yield* causes(part, depth + 1);
  yield* causes(error.cause, depth + 1);
}

const codeOf = (error: Error): string => ('code' in error && typeof error.code === 'string' ? error.code : '');

const startsWithAny = (text: string, starts: readonly string[]): boolean =>
  starts.some((start) => text.startsWith(start));

/** The SQLSTATE of an error that Postgres itself reported; otherwise undefined. */
export function getSqlState(error: unknown): string | undefined {
  for (const cause of causes(error)) if (isReported(cause)) return codeOf(cause);
  return undefined;
}

const isReported = (error: Error): boolean => /^[0-9A-Z]{5}$/.test(codeOf(error)) && 'severity' in error;

/** The connection was lost, refused or ended by the server, in any phase. */
export function isConnectionLost(error: unknown): boolean {
  for (const cause of causes(error)) if (isLossError(cause)) return true;
  return false;
}

function isLossError(error: Error): boolean {
  const code = codeOf(error);
  if (networkCodes.has(code) || sessionEndedStates.has(code) || /^08[0-9A-Z]{3}$/.test(code)) return true;
  // The socket file is missing while its server is down. (For other files the same code means something else.)
  if (code === 'ENOENT' && 'syscall' in error && error.syscall === 'connect') return true;
  return startsWithAny(error.message, lostTexts) || startsWithAny(error.message, notSentTexts);
}

/**
 * Whether the whole transaction can succeed if it is repeated from its start: the connection was lost, the server is
 * restarting or full, no connection became free in time, or the transaction lost against another one. It can also have been
 * committed (`isOutcomeUnknown`), so only repeat transactions that recognise their own first attempt.
 *
 * Not transient: lock_timeout (55P03) and statement_timeout (57014). The caller set these limits and has to decide.
 */
export function isTransient(error: unknown): boolean {
  if (isConnectionLost(error)) return true;
  for (const cause of causes(error)) {
    if (retryStates.has(codeOf(cause)) || cause.message === poolBusyText) return true;
  }
  return false;
}

/**
 * Whether a wait for the database ended without an answer: it hangs, is unreachable, or has no free connection. Code
 * with a waiting client should not retry.
 */
export function hasHung(error: unknown): boolean {
  for (const cause of causes(error)) {
    if (codeOf(cause) === connectionSilentCode || startsWithAny(cause.message, connectTimeoutTexts)) return true;
  }
  return false;
}

/**
 * For operators: the message, among those of an error and its causes, that explains the connection's failure; otherwise
 * the error's own.
 */
export function reasonOf(error: unknown): string {
  for (const cause of causes(error)) {
    if (cause.message !== '' && (isLossError(cause) || isReported(cause))) return cause.message;
  }
  return error instanceof Error ? error.message : String(error);
}

/** Insufficient resources (disk, memory, connections), operator intervention, system error (I/O). */
const troubleClasses = /^(?:53|57|58)[0-9A-Z]{3}$/;

/**
 * The database cannot do this now, because of its state and not because of the statement: every transient error, a lock that
 * is held for too long, a statement that took too long, a full disk. For callers that can wait and must not lose data.
 */
export function isDatabaseTrouble(error: unknown): boolean {
  const state = getSqlState(error);
  return isTransient(error) || state === '55P03' || (state !== undefined && troubleClasses.test(state));
}

/** "no partition of relation … found for row": a check violation without a constraint. */
export function isPartitionMissing(error: unknown): boolean {
  for (const cause of causes(error))
    if (isReported(cause) && codeOf(cause) === '23514')
      return !('constraint' in cause) || cause.constraint === undefined;
  return false;
}

/** A lock was not granted within lock_timeout, or immediately with NOWAIT (55P03). */
export function isLockTimeout(error: unknown): boolean {
  return getSqlState(error) === '55P03';
}

/** COMMIT was sent and no answer arrived: the transaction was either committed or rolled back as a whole. */
export class CommitOutcomeUnknownError extends Error {
  override readonly name = 'CommitOutcomeUnknownError';

  constructor(cause: unknown) {
    super('The connection to the database was lost while COMMIT was in flight: it may have been committed or not.', {
      cause,
    });
  }
}

/** The COMMIT was never sent, so the transaction was rolled back. */
export function wasNeverSent(error: unknown): boolean {
  return error instanceof Error && startsWithAny(error.message, notSentTexts);
}
