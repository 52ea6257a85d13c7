import { isIP, Socket } from 'node:net';
import { buildConnector } from 'undici';
import { batchPerTurn } from '#libs/kernel/batch-per-turn.ts';
import { Deadlines } from '#libs/kernel/deadlines.ts';
import type { CallHandler, CallOptions } from './connection-call.ts';
import { Connections, type Connector } from './connections.ts';
import { Destinations, portOf } from './destinations.ts';
import type { EgressAllow } from './egress-allow.ts';
import { createNameLookup, type Lookup } from './name-lookup.ts';

type Options = {
  allow: EgressAllow;
  /** Injected by tests of DNS rebinding. */
  lookup?: Lookup;
  /** Time for DNS, TCP and TLS together. Absent: undici's limit. */
  connectTimeoutMs?: number | undefined;
  /**
   * Running calls of all workspaces. One workspace has at most three times as many calls as are free. Absent: no limit.
   */
  callsMax?: number;
  /** The rate at which the large answers of one workspace are read, all together. Absent: no limit. */
  answerBytesPerSecond?: number | undefined;
  /**
   * How long an idle socket stays open if the server announces no time. This is less than the 5 s after which uvicorn
   * (vLLM) closes it without notice. A request that is written to a closing socket is lost, and a POST must not simply
   * be sent twice.
   */
  keepAliveMs?: number;
  /** Certificates in PEM that servers are checked with instead of those of public authorities. */
  ca?: string;
};

export type Egress = {
  check: Destinations['check'];
  isReachable: Destinations['isReachable'];
  /**
   * undici's dispatch, at the end of this turn of the event loop. `origin` must come from a URL that `check` accepted.
   * Redirects are not followed. `onResponseError` gets every error. A call beyond its workspace's share of the
   * connections gets the GatewayError `too_many_calls` (rate_limited, or unavailable when others hold them all).
   */
  dispatch: (options: CallOptions, handler: CallHandler) => void;
  /** Of all calls that are made through it. */
  deadlines: Deadlines;
  /**
   * Opens a TLS connection for another protocol than HTTP. The URL has passed `check`, and its scheme is https. The caller
   * closes the socket; it is also closed, with an error, when `signal` aborts.
   */
  connectTls: (url: URL, workspaceId: string, signal: AbortSignal) => Promise<Socket>;
  /** Makes an egress with the same rules whose servers have certificates of this authority, in PEM. Stop it after use. */
  trusting: (ca: string) => Egress;
  stats: () => {
    /** Open sockets. */
    sockets: number;
    connectionsOpened: number;
    destinationsRefused: number;
    /** Origins with a socket, or with one being opened. */
    origins: number;
    /** Calls that hold a socket, or wait for theirs to be opened. */
    calls: number;
    /** Calls beyond the share of their workspace. */
    callsRefused: number;
    /** Requests that were sent once more, because the other side had closed their idle socket. */
    callsResent: number;
  };
  /** Closes every socket immediately, so running calls fail. Idempotent. */
  stop: () => Promise<void>;
};

/** More than become idle together in a process with a thousand streams. Each is closed after some seconds. */
const idleMax = 1_024;

/**
 * Makes the only way out of the process: every outgoing connection is made here. An address is checked when it is
 * connected to (each one that a name resolves to, literal addresses, and the peer of the finished socket). A name that
 * resolves to another address after a check is therefore refused as well.
 *
 * HTTP/1.1 only, with one call per socket, so that a stalled stream, back-pressure or an abort affects no other call.
 */
export function createEgress(options: Options): Egress {
  const { allow, lookup = createNameLookup(), connectTimeoutMs, callsMax = Infinity } = options;
  const { keepAliveMs = 4_000, answerBytesPerSecond, ca } = options;
  const destinations = new Destinations(allow, lookup);
  let sockets = 0;
  let connectionsOpened = 0;

  /** Makes the function that opens the sockets of one origin, for any workspace. */
  const connectorOf = (origin: URL): Connector => {
    const port = portOf(origin);
    const excepted = allow.allowsHost(origin.hostname, port);
    const isAllowed = (address: string): boolean => excepted || destinations.allowsAddress(address, port);
    // The workspace of the next socket. Node looks a name up synchronously when it connects.
    const opener = { workspaceId: '' };
    const connect = buildConnector({
      allowH2: false,
      ...(connectTimeoutMs === undefined ? {} : { timeout: connectTimeoutMs }),
      ...(ca === undefined ? {} : { ca }),
      lookup: destinations.guardedLookup(port, excepted, opener),
    });
    return (workspaceId) => (options, callback) => {
      // Node does not look up a literal address, so the hook above is not called for one.
      if (isIP(options.hostname) !== 0 && !isAllowed(options.hostname)) {
        queueMicrotask(() => callback(destinations.refuse(origin.hostname, port), null));
        return undefined;
      }
      opener.workspaceId = workspaceId;
      // undici's connector returns the socket, although its type does not include it.
      const opening: unknown = connect(options, (error, socket) => {
        if (error) return callback(error, null);
        if (!isAllowed(socket.remoteAddress ?? '')) {
          socket.destroy();
          return callback(destinations.refuse(origin.hostname, port), null);
        }
        count(socket);
        callback(null, socket);
      });
      return opening instanceof Socket ? (error) => void opening.destroy(error) : undefined;
    };
  };

  const count = (socket: Socket): void => {
    sockets += 1;
    connectionsOpened += 1;
    socket.once('close', () => {
      sockets -= 1;
    });
  };

  const connections = new Connections({ connectorOf, callsMax, idleMax, keepAliveMs, answerBytesPerSecond });
  const dispatch = batchPerTurn(({ options, handler }: { options: CallOptions; handler: CallHandler }): void => {
    connections.dispatch(options, handler);
  });

  return {
    check: (url) => destinations.check(url),
    isReachable: (hostname, port, workspaceId) => destinations.isReachable(hostname, port, workspaceId),
    dispatch: (call, handler) => dispatch({ options: call, handler }),
    deadlines: new Deadlines(),
    connectTls: (url, workspaceId, signal) =>
      new Promise((resolve, reject) => {
        const hostname = url.hostname.replaceAll(/[[\]]/g, '');
        const server = { hostname, host: url.host, port: String(portOf(url)), protocol: 'https:' };
        const close = connectorOf(url)(workspaceId)(server, (error, socket) => {
          if (error) reject(error);
          else resolve(socket);
        });
        signal.addEventListener('abort', () => close?.(signal.reason as Error), { once: true });
      }),
    trusting: (authority) => createEgress({ ...options, lookup, ca: authority }),
    stats: () => ({ sockets, connectionsOpened, destinationsRefused: destinations.refused, ...connections.stats() }),
    stop: () => connections.stop(),
  };
}
