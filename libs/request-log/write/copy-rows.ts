import type pg from 'pg';
import { isConnectionLost } from '#libs/database/database-error.ts';
import { acquireClient } from '#libs/database/pool.ts';
import { logColumns } from '../row/log-entry.ts';
import { changeOf } from './log-change.ts';
import { toCopyMessages, type SealedRows } from './sealed-rows.ts';

/** Writes a group of rows, all or none. With `isBehind` it writes without pauses, because more rows are waiting. */
export type CopyRows = (group: readonly SealedRows[], isBehind: boolean) => Promise<void>;

// The rows of a busy moment are sent in messages with a pause after each. Without pauses, they occupy Postgres for 6
// ms, and a processor that others wait for: the p99 of an API on the same two cores as its database was a fifth longer.
const pauseMs = 3;

/**
 * Writes rows with COPY, all or none, together with the change that rollups read: both statements are one message, and
 * therefore one transaction and one round trip. COPY costs half as much as an INSERT. It cannot skip rows that already
 * exist (23505), so it is only for a first attempt. Throws NotEncodableError, Postgres's error, or the pool's
 * `unavailable`.
 */
export function createCopyRows(pool: pg.Pool): CopyRows {
  const statement = `copy request_log (process_id, ${logColumns.join(', ')}) from stdin`;
  return async (group, isBehind) => {
    const pieces = [...toCopyMessages(group), copyDone];
    const change = changeOf(group.map(({ ids }) => ids));
    const client = await acquireClient(pool);
    let isLost = false;
    try {
      await copy(client, change === null ? statement : `${statement}; ${change}`, pieces, isBehind);
    } catch (error) {
      // A session that is being terminated reports the error before its socket closes.
      isLost = isConnectionLost(error);
      throw error;
    } finally {
      client.release(isLost);
    }
  };
}

/**
 * COPY … FROM STDIN as a minimal `Submittable` of pg. All data is in memory, so the stream of pg-copy-streams with its
 * queue and states would only cost time. Messages: PostgreSQL documentation, "Message Flow".
 */
function copy(client: pg.PoolClient, statement: string, pieces: readonly Buffer[], isBehind: boolean): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  let sent = 0;
  let pause: NodeJS.Timeout | undefined;
  const sendNext = (stream: pg.Connection['stream']): void => {
    if (stream.writable) stream.write(pieces[sent]);
    sent += 1;
    // CopyDone is tiny and is sent with the last message.
    if (sent === pieces.length - 1 || (isBehind && sent < pieces.length)) sendNext(stream);
    else if (sent < pieces.length) pause = setTimeout(sendNext, pauseMs, stream);
  };
  client.query({
    submit: (connection: pg.Connection) => connection.query(statement),
    handleCopyInResponse: ({ stream }: pg.Connection) => sendNext(stream),
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
