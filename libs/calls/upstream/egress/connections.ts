import { Client, errors, type buildConnector, type Dispatcher } from 'undici';
import { createBytePace } from '#libs/kernel/sharing/byte-pace.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createFairPool, type FairPool } from '#libs/kernel/sharing/fair-pool.ts';
import { Call, type CallHandler, type CallOptions } from './connection-call.ts';
import { headBytesMax, ReadPaces, type ReadPace } from '../answers/read-pace.ts';

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

/** Returns a function that ends the attempt with an error, unless it is already over. */
export type Connector = (
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

/**
 * The sockets to all providers. Each socket has one call at a time (HTTP/1.1 without pipelining) and there is no
 * pool, so no call waits behind another one. The limit applies to the running calls of a workspace.
 *
 * undici's Agent and Pool are not used. The Agent never forgets an origin whose last call was aborted, a Pool has a
 * queue in which the hanging calls of one caller block those of another, and neither shows whether a socket has been
 * used before.
 */
export class Connections {
  readonly #options: Options;
  readonly #pools = new Map<string, Pool>();
  readonly #calls: FairPool;
  readonly #idle: FairPool;
  readonly #paces: ReadPaces;
  #callsRefused = 0;
  #callsResent = 0;
  #stopped: Promise<void> | undefined;

  constructor(options: Options) {
    const { callsMax, idleMax, answerBytesPerSecond } = options;
    this.#options = options;
    this.#calls = createFairPool({ units: callsMax });
    this.#idle = createFairPool({ units: idleMax });
    const bytePace = answerBytesPerSecond === undefined ? null : createBytePace(answerBytesPerSecond);
    this.#paces = new ReadPaces(undefined, bytePace);
  }

  /** Makes one call. Never throws: the handler's `onResponseError` gets every error. */
  dispatch(options: CallOptions, handler: CallHandler): void {
    const { origin, workspaceId = '' } = options;
    if (!this.#calls.tryTake(workspaceId)) {
      this.#callsRefused += 1;
      return handler.onResponseError(noController, tooManyCalls(this.#calls.held(workspaceId)));
    }
    let connection: Connection;
    try {
      connection = this.#take(origin, workspaceId);
    } catch (error) {
      this.#calls.give(workspaceId);
      return handler.onResponseError(noController, error as Error);
    }
    this.#send(connection, new Call(this, options, handler, connection));
  }

  stats() {
    return {
      origins: this.#pools.size,
      calls: this.#calls.held(),
      callsRefused: this.#callsRefused,
      callsResent: this.#callsResent,
    };
  }

  /** Closes every socket immediately, so running calls fail. Idempotent. */
  stop(): Promise<void> {
    const clients = [...this.#pools.values()].flatMap(({ all }) => [...all].map(({ client }) => client.destroy()));
    return (this.#stopped ??= Promise.all(clients).then(() => {}));
  }

  /** Called by a call that is over, with or without an error. */
  ended({ connection }: Call<Connection>, isAnswered: boolean): void {
    if (isAnswered) connection.answered += 1;
    this.#calls.give(connection.workspaceId);
    if (connection.state === 'busy') connection.state = 'ending';
  }

  /** Sends a call whose socket was already closed on a new one. Returns false when that is not possible. */
  resend(call: Call<Connection>): boolean {
    const { origin, workspaceId = '' } = call.options;
    if (!this.#calls.tryTake(workspaceId)) return false;
    let fresh: Connection;
    try {
      fresh = this.#open(origin, workspaceId);
    } catch {
      this.#calls.give(workspaceId);
      return false;
    }
    this.#callsResent += 1;
    call.handler.onResent?.();
    this.#send(fresh, call);
    return true;
  }

  /**
   * Called by a call whose caller has left. Opening the connection could take ten more seconds, and no caller waits for
   * it.
   */
  giveUp({ connection }: Call<Connection>, error: Error): void {
    if (connection.giveUp === undefined || connection.state === 'gone') return;
    connection.giveUp(error);
  }

  #send(connection: Connection, call: Call<Connection>): void {
    call.connection = connection;
    connection.client.dispatch(call.options, call);
    if (connection.giveUp !== undefined) call.handler.onConnecting?.(call);
    // undici refused the request (a header that HTTP does not allow), or dropped it before it was written.
    if (connection.state === 'ending') this.#settle(connection);
  }

  #take(origin: string, workspaceId: string): Connection {
    const kept = this.#pools.get(origin)?.idle.pop();
    if (kept === undefined) return this.#open(origin, workspaceId);
    this.#idle.give(kept.workspaceId);
    kept.state = 'busy';
    kept.workspaceId = workspaceId;
    kept.pace?.startCall(workspaceId);
    return kept;
  }

  #open(origin: string, workspaceId: string): Connection {
    if (this.#stopped !== undefined) throw new errors.ClientDestroyedError();
    const pool = this.#pools.get(origin) ?? this.#createPool(origin);
    const connect = pool.connector(workspaceId);
    const client = new Client(pool.url, {
      connect: (options, callback) => {
        made.giveUp = connect(options, (error, socket) => {
          made.giveUp = undefined;
          if (error) return callback(error, null);
          made.pace = this.#paces.pace(socket);
          made.pace.startCall(made.workspaceId);
          callback(null, socket);
        });
      },
      keepAliveTimeout: this.#options.keepAliveMs,
      maxHeaderSize: headBytesMax,
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
    this.#follow(made);
    this.#pools.set(origin, pool);
    pool.all.add(made);
    return made;
  }

  #createPool(origin: string): Pool {
    const url = new URL(origin);
    return { origin, url, connector: this.#options.connectorOf(url), all: new Set(), idle: [] };
  }

  #follow(connection: Connection): void {
    connection.client.on('connect', () => {
      connection.isOpen = true;
      connection.answered = 0;
    });
    connection.client.on('disconnect', () => {
      connection.isOpen = false;
      // A request that was not written yet is written to the next socket, so the client is still in use.
      if (connection.state !== 'busy') this.#forget(connection);
    });
    connection.client.on('drain', () => {
      if (connection.state === 'ending') this.#settle(connection);
    });
  }

  /** Decides about a socket when its call is over and undici would start the next one. */
  #settle(connection: Connection): void {
    if (!connection.isOpen || !this.#idle.tryTake(connection.workspaceId)) return this.#forget(connection);
    connection.state = 'idle';
    connection.pool.idle.push(connection);
  }

  #forget(connection: Connection): void {
    const { state, pool, client } = connection;
    if (state === 'gone') return;
    if (state === 'idle') {
      pool.idle.splice(pool.idle.lastIndexOf(connection), 1);
      this.#idle.give(connection.workspaceId);
    }
    connection.state = 'gone';
    pool.all.delete(connection);
    if (pool.all.size === 0 && this.#pools.get(pool.origin) === pool) this.#pools.delete(pool.origin);
    void client.destroy();
  }
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
