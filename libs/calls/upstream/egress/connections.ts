import { Client, errors, type buildConnector, type Dispatcher } from 'undici';
import { createBytePace } from '#libs/kernel/byte-pace.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createFairPool } from '#libs/kernel/fair-pool.ts';
import { Call, type CallHandler, type CallOptions } from './connection-call.ts';
import { ReadPaces, type ReadPace } from '../answers/read-pace.ts';

type Options = {
  /** Makes the function that opens the sockets of one origin. It is given the workspace. */
  connectorOf: (origin: URL) => Connector;
  /** The maximum of running calls of all workspaces together. Each has its own socket. */
  callsMax: number;
  /** The maximum of idle sockets, of all workspaces together, that are kept for later calls. */
  idleMax: number;
  keepAliveMs: number;
  /** The rate at which the large answers of one workspace are read, all together. Absent: no limit. */
  answerBytesPerSecond?: number | undefined;
};

export type Connections = {
  /** Makes one call. Never throws: the handler's `onResponseError` gets every error. */
  dispatch: (options: CallOptions, handler: CallHandler) => void;
  stats: () => { origins: number; calls: number; callsRefused: number; callsResent: number };
  /** Closes every socket immediately, so running calls fail. Idempotent. */
  stop: () => Promise<void>;
};

/** Returns a function that ends the attempt with an error, unless it is already over. */
type Connector = (
  workspaceId: string,
) => (...args: Parameters<buildConnector.connector>) => ((error: Error) => void) | undefined;

/** The sockets of one origin. It exists as long as one of them does. */
type Pool = { origin: string; url: URL; connector: Connector; all: Set<Connection>; idle: Connection[] };

/** A socket, from before it is opened until it is closed. */
type Connection = {
  client: Client;
  pool: Pool;
  /** `ending`: its call is over, but undici has not released it yet. */
  state: 'busy' | 'ending' | 'idle' | 'gone';
  isOpen: boolean;
  /** While it is being opened. */
  giveUp: ((error: Error) => void) | undefined;
  answered: number;
  pace: ReadPace | null;
  workspaceId: string;
};

const noController = null as unknown as Dispatcher.DispatchController;
const maxHeaderBytes = 16_384;
/**
 * Makes the sockets to all providers. Each socket has one call at a time (HTTP/1.1 without pipelining) and there is no
 * pool, so no call waits behind another one. The limit applies to the running calls of a workspace.
 *
 * undici's Agent and Pool are not used. The Agent never forgets an origin whose last call was aborted, a Pool has a
 * queue in which the hanging calls of one caller block those of another, and neither shows whether a socket has been
 * used before.
 */
export function createConnections(options: Options): Connections {
  const { connectorOf, callsMax, idleMax, keepAliveMs, answerBytesPerSecond } = options;
  const pools = new Map<string, Pool>();
  const calls = createFairPool({ units: callsMax });
  const idle = createFairPool({ units: idleMax });
  const bytePace = answerBytesPerSecond === undefined ? null : createBytePace(answerBytesPerSecond);
  const paces = new ReadPaces(undefined, bytePace);
  let callsRefused = 0;
  let callsResent = 0;
  let stopped: Promise<void> | undefined;

  const open = (origin: string, workspaceId: string): Connection => {
    if (stopped !== undefined) throw new errors.ClientDestroyedError();
    let pool = pools.get(origin);
    if (pool === undefined) {
      const url = new URL(origin);
      pool = { origin, url, connector: connectorOf(url), all: new Set(), idle: [] };
    }
    const connect = pool.connector(workspaceId);
    const client = new Client(pool.url, {
      connect: (options, callback) => {
        made.giveUp = connect(options, (error, socket) => {
          made.giveUp = undefined;
          if (error) return callback(error, null);
          made.pace = paces.pace(socket);
          made.pace.startCall(made.workspaceId);
          callback(null, socket);
        });
      },
      keepAliveTimeout: keepAliveMs,
      maxHeaderSize: maxHeaderBytes,
      allowH2: false,
    });
    const made: Connection = {
      client,
      pool,
      state: 'busy',
      isOpen: false,
      giveUp: undefined,
      answered: 0,
      pace: null,
      workspaceId,
    };
    client.on('connect', () => {
      made.isOpen = true;
      made.answered = 0;
    });
    client.on('disconnect', () => {
      made.isOpen = false;
      // A request that was not written yet is written to the next socket, so the client is still in use.
      if (made.state !== 'busy') forget(made);
    });
    client.on('drain', () => {
      if (made.state === 'ending') settle(made);
    });
    pools.set(origin, pool);
    pool.all.add(made);
    return made;
  };

  const take = (origin: string, workspaceId: string): Connection => {
    const kept = pools.get(origin)?.idle.pop();
    if (kept === undefined) return open(origin, workspaceId);
    idle.give(kept.workspaceId);
    kept.state = 'busy';
    kept.workspaceId = workspaceId;
    kept.pace?.startCall(workspaceId);
    return kept;
  };

  /** Decides about a socket when its call is over and undici would start the next one. */
  const settle = (connection: Connection): void => {
    if (!connection.isOpen || !idle.tryTake(connection.workspaceId)) return forget(connection);
    connection.state = 'idle';
    connection.pool.idle.push(connection);
  };

  const forget = (connection: Connection): void => {
    const { state, pool, client } = connection;
    if (state === 'gone') return;
    if (state === 'idle') {
      pool.idle.splice(pool.idle.lastIndexOf(connection), 1);
      idle.give(connection.workspaceId);
    }
    connection.state = 'gone';
    pool.all.delete(connection);
    if (pool.all.size === 0 && pools.get(pool.origin) === pool) pools.delete(pool.origin);
    void client.destroy();
  };

  const end = (connection: Connection): void => {
    calls.give(connection.workspaceId);
    if (connection.state === 'busy') connection.state = 'ending';
  };

  const send = (connection: Connection, call: Call<Connection>): void => {
    call.connection = connection;
    connection.client.dispatch(call.options, call);
    if (connection.giveUp !== undefined) call.handler.onConnecting?.(call);
    // undici refused the request (a header that HTTP does not allow), or dropped it before it was written.
    if (connection.state === 'ending') settle(connection);
  };

  /** Called by a call that is over, with or without an error. */
  const ended = (call: Call<Connection>, isAnswered: boolean): void => {
    if (isAnswered) call.connection.answered += 1;
    end(call.connection);
  };

  /** Sends a call whose socket was already closed on a new one. Returns false when that is not possible. */
  const resend = (call: Call<Connection>): boolean => {
    const { origin, workspaceId = '' } = call.options;
    if (!calls.tryTake(workspaceId)) return false;
    let fresh: Connection;
    try {
      fresh = open(origin, workspaceId);
    } catch {
      calls.give(workspaceId);
      return false;
    }
    callsResent += 1;
    call.handler.onResent?.();
    send(fresh, call);
    return true;
  };

  /**
   * Called by a call whose caller has left. Opening the connection could take ten more seconds, and no caller waits for
   * it.
   */
  const giveUp = ({ connection }: Call<Connection>, error: Error): void => {
    if (connection.giveUp === undefined || connection.state === 'gone') return;
    connection.giveUp(error);
  };

  const owner = { ended, resend, giveUp };

  return {
    dispatch: (options, handler) => {
      const { origin, workspaceId = '' } = options;
      if (!calls.tryTake(workspaceId)) {
        callsRefused += 1;
        return handler.onResponseError(noController, tooManyCalls(calls.held(workspaceId)));
      }
      let connection: Connection;
      try {
        connection = take(origin, workspaceId);
      } catch (error) {
        calls.give(workspaceId);
        return handler.onResponseError(noController, error as Error);
      }
      send(connection, new Call(owner, options, handler, connection));
    },
    stats: () => ({ origins: pools.size, calls: calls.held(), callsRefused, callsResent }),
    stop: () => {
      const clients = [...pools.values()].flatMap(({ all }) => [...all].map(({ client }) => client.destroy()));
      return (stopped ??= Promise.all(clients).then(() => {}));
    },
  };
}

function tooManyCalls(held: number): GatewayError {
  const [kind, what] =
    held === 0
      ? (['unavailable', 'Too many calls to providers are in flight'] as const)
      : (['rate_limited', `This workspace has ${held} calls to providers in flight, its current maximum`] as const);
  return new GatewayError(kind, 'too_many_calls', `${what}. Send the request again when some of them have ended.`, {
    retryAfterMs: 1_000,
  });
}
