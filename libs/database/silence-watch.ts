import { Socket } from 'node:net';
import pg from 'pg';
import { connectionSilentCode, getSqlState } from './database-error.ts';

type SilenceWatchOptions = {
  connectionString: string;
  /** The address of Postgres itself, if `connectionString` is that of a pooler. */
  directUrl: string | undefined;
  /** The application name of the watched sessions. */
  applicationName: string;
  /** How long a query can wait without any answer before the server is queried whether it is working on it. */
  silenceMs: number;
  /** How long the server can take for that answer. */
  askMs: number;
  /** The longest silence, regardless of the server's answer. */
  silenceMsMax: number;
};

type Silenced = pg.Client & { processID?: number | null; readyForQuery?: boolean };

/** The server's view of its sessions; `away` if it does not answer. An unknown session can belong to a pooler. */
type SessionStates = Map<number, string | null> | 'away' | 'unknown';

/**
 * Closes connections on which a query waits in vain. The server's own statement_timeout does not help if the server is
 * stopped or the network drops its packets; TCP alone would wait for about 15 minutes. (pg's `query_timeout` does not
 * help either: it leaves the stuck connection in the pool.) A query that is merely slow is not affected: after a short
 * silence, the server is queried over a separate connection whether it is working on it.
 *
 * The query then fails with `connectionSilentCode` if the server does not answer at all, and with ECONNRESET if the
 * server never got the query or its answer was lost.
 */
export function createSilenceWatch(options: SilenceWatchOptions): (client: pg.ClientBase) => void {
  const { silenceMs, silenceMsMax } = options;
  let asking: Promise<SessionStates> | undefined;
  const ask = (): Promise<SessionStates> => (asking ??= askForSessions(options).finally(() => (asking = undefined)));

  return (watched) => {
    const client = watched as Silenced;
    const { stream } = client.connection;
    if (!(stream instanceof Socket)) return;
    const isWaiting = (): boolean => client.readyForQuery === false && !stream.destroyed;
    let silentSinceMs = 0;
    let bytesSeen = -1;
    const judge = async (): Promise<void> => {
      if (!isWaiting()) return;
      if (stream.bytesRead + stream.bytesWritten !== bytesSeen) {
        bytesSeen = stream.bytesRead + stream.bytesWritten;
        silentSinceMs = performance.now() - silenceMs;
      }
      const sessions = await ask();
      if (!isWaiting() || stream.bytesRead + stream.bytesWritten !== bytesSeen) return;
      const state = sessions instanceof Map && client.processID ? sessions.get(client.processID) : undefined;
      if (sessions === 'away' || performance.now() - silentSinceMs >= silenceMsMax) {
        stream.destroy(Object.assign(new Error('The database stopped responding.'), { code: connectionSilentCode }));
      } else if (state === 'idle' || state === 'idle in transaction') {
        stream.destroy(Object.assign(new Error('The query or its answer was lost.'), { code: 'ECONNRESET' }));
      } else stream.setTimeout(silenceMs); // It is set again because the timer runs only once.
    };
    stream.setTimeout(silenceMs);
    stream.on('timeout', () => void judge());
  };
}

async function askForSessions({
  connectionString,
  directUrl,
  applicationName,
  askMs,
}: SilenceWatchOptions): Promise<SessionStates> {
  const readSessions = async (client: pg.Client): Promise<SessionStates> => {
    const { rows } = await client.query<{ pid: number; state: string | null }>(
      'select pid, state from pg_stat_activity where application_name = $1 and datname = current_database()',
      [applicationName],
    );
    return new Map(rows.map(({ pid, state }) => [pid, state]));
  };
  if (directUrl === undefined) return await ask(connectionString, askMs, readSessions);
  // A pooler hides which session a connection uses, and a query through it could wait for a free one.
  const answers = await Promise.all([
    ask(connectionString, askMs, async () => 'unknown'),
    ask(directUrl, askMs, readSessions),
  ]);
  return answers.includes('away') ? 'away' : 'unknown';
}

async function ask(
  connectionString: string,
  askMs: number,
  read: (client: pg.Client) => Promise<SessionStates>,
): Promise<SessionStates> {
  const client = new pg.Client({ connectionString, application_name: 'sluice-silence' });
  client.on('error', () => {});
  const late = setTimeout(() => client.connection.stream.destroy(new Error('timeout expired')), askMs);
  try {
    await client.connect();
    return await read(client);
  } catch (error) {
    // A server that refuses the connection (full, or starting) is alive.
    return getSqlState(error) === undefined ? 'away' : 'unknown';
  } finally {
    clearTimeout(late);
    void client.end().catch(() => {});
  }
}
