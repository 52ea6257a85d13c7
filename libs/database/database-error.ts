// Which errors of Postgres mean "try again", told apart here only. SQLSTATEs: PostgreSQL documentation, appendix A.

/** The session is gone: administrator or crash shutdown, starting up, idle timeouts that end the session. */
const sessionEndedStates = new Set(['57P01', '57P02', '57P03', '57P05', '25P03', '25P04']);
/** Serialization failure, deadlock, too many connections: the same statement may succeed when it is repeated. */
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
  // A container that restarts has no name meanwhile.
  'ENOTFOUND',
]);

// pg gives these no code (pg/lib/client.js, pg-pool/index.js; pg 8.23).
const lostTexts = ['Connection terminated', 'timeout expired', 'Query read timeout', 'server closed the connection'];
const notSentTexts = [
  'Client has encountered a connection error and is not queryable',
  'Client was closed and is not queryable',
  'Postgres connection has been discarded', // Kysely, after a ROLLBACK that failed
];
const poolBusyText = 'timeout exceeded when trying to connect';
const connectTimeoutTexts = [poolBusyText, 'timeout expired', 'Connection terminated due to connection timeout'];

/** Of a query that was given up because the server stopped answering (silence-watch.ts). */
export const connectionSilentCode = 'ETIMEDOUT';

/** Follows `cause` and the parts of an AggregateError (a host name with several addresses), to a fixed depth. */
function* causes(error: unknown, depth = 0): Generator<Error> {
  if (!(error instanceof Error) || depth > 5) return;
  yield error;
  if (error instanceof AggregateError) for (const part of error.errors) yield* causes(part, depth + 1);
  yield* causes(error.cause, depth + 1);
}

const codeOf = (error: Error): string => ('code' in error && typeof error.code === 'string' ? error.code : '');

const startsWithAny = (text: string, starts: readonly string[]): boolean =>
  starts.some((start) => text.startsWith(start));

/** The SQLSTATE of an error that Postgres itself reported, else undefined. */
export function sqlStateOf(error: unknown): string | undefined {
  for (const cause of causes(error)) if (isReported(cause)) return codeOf(cause);
  return undefined;
}

const isReported = (error: Error): boolean => /^[0-9A-Z]{5}$/.test(codeOf(error)) && 'severity' in error;

/** The connection was lost, refused or ended by the server, whatever was being done on it. */
export function isConnectionLost(error: unknown): boolean {
  for (const cause of causes(error)) if (tellsOfLoss(cause)) return true;
  return false;
}

function tellsOfLoss(error: Error): boolean {
  const code = codeOf(error);
  if (networkCodes.has(code) || sessionEndedStates.has(code) || /^08[0-9A-Z]{3}$/.test(code)) return true;
  // A Unix socket is not there while its server is down. (Of a file, the same code means something else.)
  if (code === 'ENOENT' && 'syscall' in error && error.syscall === 'connect') return true;
  return startsWithAny(error.message, lostTexts) || startsWithAny(error.message, notSentTexts);
}

/**
 * The whole transaction may succeed when it is repeated from its start: the connection was lost, the server restarts or
 * is full, no connection became free in time, or the transaction lost against another one. It may also have been
 * committed already (`isOutcomeUnknown`): repeat only what recognises its own first try.
 *
 * Not transient: lock_timeout (55P03) and statement_timeout (57014), which the caller asked for and must judge.
 */
export function isTransient(error: unknown): boolean {
  if (isConnectionLost(error)) return true;
  for (const cause of causes(error)) {
    if (retryStates.has(codeOf(cause)) || cause.message === poolBusyText) return true;
  }
  return false;
}

/**
 * The database was waited for, and says nothing: it hangs, is out of reach, or has no connection to spare. Whoever has a
 * client that waits does not try again by himself.
 */
export function hasHung(error: unknown): boolean {
  for (const cause of causes(error)) {
    if (codeOf(cause) === connectionSilentCode || startsWithAny(cause.message, connectTimeoutTexts)) return true;
  }
  return false;
}

/** Of an error and its causes, the message that tells what the connection met, else the error's own; for operators. */
export function reasonOf(error: unknown): string {
  for (const cause of causes(error)) {
    if (cause.message !== '' && (tellsOfLoss(cause) || isReported(cause))) return cause.message;
  }
  return error instanceof Error ? error.message : String(error);
}

/** Insufficient resources (disk, memory, connections), operator intervention, system error (I/O). */
const troubleClasses = /^(?:53|57|58)[0-9A-Z]{3}$/;

/**
 * The database cannot do it now, for a reason that lies in its own state and not in what was asked: all that is
 * transient, a lock that somebody else holds for too long, a statement that took too long, a full disk. For callers who
 * have something that must not be lost and can wait.
 */
export function isDatabaseTrouble(error: unknown): boolean {
  const state = sqlStateOf(error);
  return isTransient(error) || state === '55P03' || (state !== undefined && troubleClasses.test(state));
}

/** A lock was not granted within lock_timeout, or at once with NOWAIT (55P03). */
export function isLockTimeout(error: unknown): boolean {
  return sqlStateOf(error) === '55P03';
}

/** COMMIT was sent and its answer never came: the transaction is either wholly committed or wholly rolled back. */
export class CommitOutcomeUnknownError extends Error {
  override readonly name = 'CommitOutcomeUnknownError';

  constructor(cause: unknown) {
    super('The connection to the database was lost while COMMIT was in flight: it may have been committed or not.', {
      cause,
    });
  }
}

/**
 * True for the error of a transaction whose COMMIT was in flight when its connection was lost. Any other error of a
 * transaction means that nothing of it was committed. Known only for transactions of `createDatabase`.
 */
export function isOutcomeUnknown(error: unknown): boolean {
  for (const cause of causes(error)) if (cause instanceof CommitOutcomeUnknownError) return true;
  return false;
}

/** A COMMIT that failed this way was never sent, so that its outcome is known: rolled back. */
export function wasNeverSent(error: unknown): boolean {
  return error instanceof Error && startsWithAny(error.message, notSentTexts);
}
