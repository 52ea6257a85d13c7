import type pg from 'pg';
import { isConnectionLost } from '#libs/database/database-error.ts';
import { acquireClient } from '#libs/database/pool.ts';
import { logColumns, NotEncodableError, type WriteRows } from './insert-rows.ts';
import type { LogRow } from './log-entry.ts';

/**
 * Writes rows with COPY, all or none, for half of what an INSERT costs. It cannot pass over rows that are there already
 * (23505): it is for a first try. Throws NotEncodableError, what Postgres says, or the pool's `unavailable`.
 */
export function createCopyRows(pool: pg.Pool, processId: string): WriteRows {
  const statement = `copy request_log (process_id, ${logColumns.join(', ')}) from stdin`;
  return async (rows) => {
    const messages = toCopyMessages(encodeRows(rows, processId));
    const client = await acquireClient(pool);
    let isLost = false;
    try {
      await copy(client, statement, messages);
    } catch (error) {
      isLost = isConnectionLost(error); // a session that is being ended says so before its socket does
      throw error;
    } finally {
      client.release(isLost);
    }
  };
}

/**
 * COPY … FROM STDIN as the least that pg asks of a query (`Submittable`): all of the data is there, so that the stream
 * of pg-copy-streams, with its queue and states, would only cost. Messages: PostgreSQL documentation, "Message Flow".
 */
function copy(client: pg.PoolClient, statement: string, messages: Buffer): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  client.query({
    submit: (connection: pg.Connection) => connection.query(statement),
    handleCopyInResponse: ({ stream }: pg.Connection) => {
      if (stream.writable) stream.write(messages);
    },
    handleCommandComplete: () => {},
    handleReadyForQuery: () => resolve(),
    handleError: (error: Error) => reject(error),
  } satisfies pg.Submittable & Record<string, unknown>);
  return promise;
}

/** CopyData with the whole text, then CopyDone: one write to the socket. */
function toCopyMessages(text: string): Buffer {
  const sizeBytes = Buffer.byteLength(text);
  const messages = Buffer.allocUnsafe(sizeBytes + 10);
  messages.write('d', 0);
  messages.writeUInt32BE(sizeBytes + 4, 1);
  messages.write(text, 5);
  messages.write('c', sizeBytes + 5);
  messages.writeUInt32BE(4, sizeBytes + 6);
  return messages;
}

/** The rows in COPY's text format (https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"). */
function encodeRows(rows: readonly LogRow[], processId: string): string {
  let text = '';
  try {
    for (const row of rows) {
      text += processId;
      for (const column of logColumns) text += '\t' + encodeField(row[column]);
      text += '\n';
    }
  } catch (error) {
    throw new NotEncodableError('a row of the request log cannot be written as text', { cause: error });
  }
  return text;
}

function encodeField(value: LogRow[keyof LogRow]): string {
  if (value === null) return '\\N';
  if (typeof value === 'string') return escapeText(value);
  // What is no number is null, as in JSON.
  if (typeof value === 'number') return Number.isFinite(value) ? String(value) : '\\N';
  if (typeof value === 'boolean') return value ? 't' : 'f';
  return value instanceof Date ? value.toISOString() : escapeText(JSON.stringify(value));
}

const special = /[\\\t\n\r]/;
const escapes: Readonly<Record<string, string>> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' };

function escapeText(text: string): string {
  return special.test(text) ? text.replace(/[\\\t\n\r]/g, (character) => escapes[character] ?? character) : text;
}
