import type pg from 'pg';
import { isConnectionLost } from '#libs/database/database-error.ts';
import { acquireClient } from '#libs/database/pool.ts';
import { logColumns } from '../row/log-entry.ts';
import { changeOf } from './log-change.ts';
import { packColumns } from './pack-rows.ts';
import { toCopies, type SealedRows } from './sealed-rows.ts';

/** Writes a group of rows, all or none. With `isBehind` it writes without pauses, because more rows are waiting. */
export type CopyRows = (group: readonly SealedRows[], isBehind: boolean) => Promise<void>;

// The rows of a busy moment are sent in messages with a pause after each. Without pauses, they occupy Postgres for 6
// ms, and a processor that others wait for: the p99 of an API on the same two cores as its database was a fifth longer.
const pauseMs = 3;

/**
 * Writes rows and packs with COPY, all or none, together with the change that rollups read: the statements are one
 * message, and therefore one transaction and one round trip. COPY costs half as much as an INSERT. It cannot skip rows
 * that already exist (23505), so it is only for a first attempt. Throws NotEncodableError, Postgres's error, or the
 * pool's `unavailable`.
 */
export function createCopyRows(pool: pg.Pool): CopyRows {
  return async (group, isBehind) => {
    const copies = toCopies(group);
    const change = changeOf(group.map(({ ids }) => ids));
    if (copies.length === 0 || change === null) return;
    const statements = [...copies.map(({ table }) => copyStatements[table]), change];
    const client = await acquireClient(pool);
    let isLost = false;
    try {
      const pieces = copies.map((copy) => [...copy.pieces, copyDone]);
      await copy(client, statements.join('; '), pieces, isBehind);
    } catch (error) {
      // A session that is being terminated reports the error before its socket closes.
      isLost = isConnectionLost(error);
      throw error;
    } finally {
      client.release(isLost);
    }
  };
}

const copyStatements = {
  request_log_row: `copy request_log_row (process_id, ${logColumns.join(', ')}) from stdin`,
  request_log_pack: `copy request_log_pack (process_id, ${packColumns.map(({ name }) => name).join(', ')}) from stdin`,
};

/**
 * Statements of COPY … FROM STDIN, with the messages for each, as a minimal `Submittable` of pg. All data is in memory,
 * so the stream of pg-copy-streams with its queue and states would only cost time. Messages: PostgreSQL documentation,
 * "Message Flow".
 */
function copy(
  client: pg.PoolClient,
  statements: string,
  copies: readonly (readonly Buffer[])[],
  isBehind: boolean,
): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const waiting = [...copies];
  let pause: NodeJS.Timeout | undefined;
  const sendNext = (stream: pg.Connection['stream'], [next, ...rest]: readonly Buffer[]): void => {
    if (stream.writable && next !== undefined) stream.write(next);
    // CopyDone is tiny and is sent with the last message.
    if (rest.length === 1 || (isBehind && rest.length > 0)) sendNext(stream, rest);
    else if (rest.length > 0) pause = setTimeout(sendNext, pauseMs, stream, rest);
  };
  client.query({
    submit: (connection: pg.Connection) => connection.query(statements),
    handleCopyInResponse: ({ stream }: pg.Connection) => sendNext(stream, waiting.shift() ?? [copyDone]),
    handleCommandComplete: () => {},
    handleReadyForQuery: () => resolve(),
    handleError: (error: Error) => {
      // The next user of the connection must not get these messages.
      clearTimeout(pause);
      reject(error);
    },
  } satisfies pg.Submittable & Record<string, unknown>);
  return promise;
}

const copyDone = Buffer.from([0x63, 0, 0, 0, 4]);
