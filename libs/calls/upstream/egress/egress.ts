import { isIP, Socket, type LookupFunction } from 'node:net';
import { buildConnector } from 'undici';
import { GatewayError } from '#libs/kernel/errors.ts';
import { batchPerTurn } from '#libs/kernel/batch-per-turn.ts';
import type { CallHandler, CallOptions } from './connection-call.ts';
import { Connections, type Connector } from './connections.ts';
import type { EgressAllow } from './egress-allow.ts';
import { isForbiddenAddress } from './forbidden-addresses.ts';
import { createNameLookup, isLocalhost, type Lookup } from './name-lookup.ts';

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
};

export type Egress = {
  /**
   * Refuses a URL that could not be called: not http(s), with credentials in it, or with a forbidden address as its
   * host. A name is not resolved here; the addresses that it resolves to are checked at every connection. Also used
   * when a host is stored. Throws GatewayError `invalid_request` / `destination_not_allowed`.
   */
  check: (url: URL) => void;
  /**
   * Whether connections to this host would be allowed by its addresses, of which it must have one. Never rejects: false
   * if the lookup fails or is beyond its workspace's share.
   */
  isReachable: (hostname: string, port: number, workspaceId: string) => Promise<boolean>;
  /**
   * undici's dispatch, at the end of this turn of the event loop. `origin` must come from a URL that `check` accepted.
   * Redirects are not followed. `onResponseError` gets every error. A call beyond its workspace's share of the
   * connections gets the GatewayError `too_many_calls` (rate_limited, or unavailable when others hold them all).
   */
  dispatch: (options: CallOptions, handler: CallHandler) => void;
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

const passedMax = 1_000;
/** More than become idle together in a process with a thousand streams. Each is closed after some seconds. */
const idleMax = 1_024;

/**
 * Makes the only way out of the process: every outgoing connection is made here. An address is checked when it is
 * connected to (each one that a name resolves to, literal addresses, and the peer of the finished socket). A name that
 * resolves to another address after a check is therefore refused as well.
 *
 * HTTP/1.1 only, with one call per socket, so that a stalled stream, back-pressure or an abort affects no other call.
 */
export function createEgress({
  allow,
  lookup = createNameLookup(),
  connectTimeoutMs,
  callsMax = Infinity,
  keepAliveMs = 4_000,
  answerBytesPerSecond,
}: Options): Egress {
  let sockets = 0;
  let connectionsOpened = 0;
  let destinationsRefused = 0;

  const allowed = (address: string, port: number): boolean =>
    !isForbiddenAddress(address) || allow.allowsAddress(address, port);

  const refuse = (hostname: string, port: number): Error => {
    destinationsRefused += 1;
    return new GatewayError(
      'invalid_request',
      'destination_not_allowed',
      `Connections to ${hostname}:${port} are not allowed: it is, or resolves to, a private or reserved address. ` +
        `Use a public host, or ask the operator to allow this one by adding it to the variable that Sluice is started with: ` +
        `SLUICE_EGRESS_ALLOW=${hostname}:${port}`,
    );
  };

  // Caches the URLs of stored targets, which every call needs, because parsing a URL is expensive.
  const passed = new Set<string>();

  const check = (url: URL): void => {
    if (passed.has(url.href)) return;
    checkParts(url);
    if (passed.size < passedMax) passed.add(url.href);
  };

  const checkParts = (url: URL): void => {
    if (url.protocol !== 'https:' && url.protocol !== 'http:') {
      throw new GatewayError(
        'invalid_request',
        'destination_not_allowed',
        `A provider's URL must start with https:// or http://, not ${url.protocol}`,
      );
    }
    if (url.username !== '' || url.password !== '') {
      throw new GatewayError(
        'invalid_request',
        'destination_not_allowed',
        "A provider's URL must not contain a user name or password. Send the key as the credential.",
      );
    }
    const port = portOf(url);
    const address = literalOf(url.hostname);
    if (address !== null && !allow.allowsHost(url.hostname, port) && !allowed(address, port))
      throw refuse(url.hostname, port);
  };

  /** Refuses a name when any of its addresses is forbidden: such a name is an attack or a mistake. */
  const guardedLookup =
    (port: number, excepted: boolean, opener: { workspaceId: string }): LookupFunction =>
    (hostname, options, callback) => {
      const request = { ...options, all: true as const, workspaceId: opener.workspaceId, isOperators: excepted };
      lookup(hostname, request, (error, addresses) => {
        const [first] = addresses ?? [];
        if (error || !first) callback(error ?? notFound(hostname), '', 0);
        else if (!excepted && addresses.some(({ address }) => !allowed(address, port)))
          callback(refuse(hostname, port), '', 0);
        else if (options.all) callback(null, addresses);
        else callback(null, first.address, first.family);
      });
    };

  /** Makes the function that opens the sockets of one origin, for any workspace. */
  const connectorOf = (origin: URL): Connector => {
    const port = portOf(origin);
    const excepted = allow.allowsHost(origin.hostname, port);
    // The workspace of the next socket. Node looks a name up synchronously when it connects.
    const opener = { workspaceId: '' };
    const connect = buildConnector({
      allowH2: false,
      ...(connectTimeoutMs === undefined ? {} : { timeout: connectTimeoutMs }),
      lookup: guardedLookup(port, excepted, opener),
    });
    return (workspaceId) => (options, callback) => {
      // Node does not look up a literal address, so the hook above is not called for one.
      if (!excepted && isIP(options.hostname) !== 0 && !allowed(options.hostname, port)) {
        queueMicrotask(() => callback(refuse(origin.hostname, port), null));
        return undefined;
      }
      opener.workspaceId = workspaceId;
      // undici's connector returns the socket, although its type does not include it.
      const opening: unknown = connect(options, (error, socket) => {
        if (error) return callback(error, null);
        if (!excepted && !allowed(socket.remoteAddress ?? '', port)) {
          socket.destroy();
          return callback(refuse(origin.hostname, port), null);
        }
        count(socket);
        callback(null, socket);
      });
      return opening instanceof Socket ? (error) => void opening.destroy(error) : undefined;
    };
  };

  const isReachable: Egress['isReachable'] = (hostname, port, workspaceId) => {
    if (allow.allowsHost(hostname, port)) return Promise.resolve(true);
    const address = literalOf(hostname);
    if (address !== null) return Promise.resolve(allowed(address, port));
    return new Promise((resolve) => {
      lookup(hostname, { all: true, workspaceId }, (error, addresses) => {
        resolve(!error && addresses.length > 0 && addresses.every((found) => allowed(found.address, port)));
      });
    });
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
    check,
    isReachable,
    dispatch: (options, handler) => dispatch({ options, handler }),
    stats: () => ({ sockets, connectionsOpened, destinationsRefused, ...connections.stats() }),
    stop: () => connections.stop(),
  };
}

function portOf(url: URL): number {
  if (url.port !== '') return Number(url.port);
  return url.protocol === 'https:' ? 443 : 80;
}

/**
 * The address in a URL's host, without the brackets of IPv6; for a name of this machine its address; null for other
 * names.
 */
function literalOf(hostname: string): string | null {
  if (isLocalhost(hostname)) return '127.0.0.1';
  const bare = hostname.startsWith('[') ? hostname.slice(1, -1) : hostname;
  return isIP(bare) === 0 ? null : bare;
}

function notFound(hostname: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`${hostname} has no address`), { code: 'ENOTFOUND' });
}
