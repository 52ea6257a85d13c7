import { isIP, Socket, type LookupFunction } from 'node:net';
import { buildConnector } from 'undici';
import { GatewayError } from '#libs/kernel/errors.ts';
import { batchPerTurn } from '#libs/kernel/batch-per-turn.ts';
import type { CallHandler, CallOptions } from './connection-call.ts';
import { createConnections } from './connections.ts';
import type { EgressAllow } from './egress-allow.ts';
import { isForbiddenAddress } from './forbidden-addresses.ts';
import { createNameLookup, isLocalhost, type Lookup } from './name-lookup.ts';

type Options = {
  allow: EgressAllow;
  /** Injected by tests that play a rebinding name server. */
  lookup?: Lookup;
  /** Time for DNS, TCP and TLS together. */
  connectTimeoutMs?: number;
  /** Calls under way at once, of all workspaces; one workspace has at most three times as many as are free. */
  callsMax?: number;
  /** At which the large answers of a workspace are read, together. Absent: as they come. */
  answerBytesPerSecond?: number | undefined;
  /**
   * How long an idle socket is kept when the server does not say. Below the 5 s after which uvicorn (vLLM) closes without
   * a hint: a request written to a socket that is just being closed is lost, and a POST must not be sent twice unasked.
   */
  keepAliveMs?: number;
};

export type Egress = {
  /**
   * Refuses a URL that could not be called: not http(s), with credentials in it, or with a forbidden address in its host.
   * A name is not resolved here: what it resolves to is judged at every connection. For use when a host is stored, too.
   * Throws GatewayError `invalid_request` / `destination_not_allowed`.
   */
  check: (url: URL) => void;
  /**
   * undici's dispatch, at the end of this turn of the event loop. `origin` must come from a URL that `check` passed.
   * Redirects are not followed. Whatever is wrong comes by the handler's `onResponseError`: of a call beyond its workspace's
   * share of the connections the GatewayError `too_many_calls` (rate_limited, or unavailable when others hold them all).
   */
  dispatch: (options: CallOptions, handler: CallHandler) => void;
  stats: () => {
    /** Open ones. */
    sockets: number;
    connectionsOpened: number;
    destinationsRefused: number;
    /** Those with a socket, or with one being opened. */
    origins: number;
    /** Calls that hold a socket, or wait for theirs to be opened. */
    calls: number;
    /** Beyond the share of their workspace. */
    callsRefused: number;
    /** Sent once more, because the other side had closed their idle socket. */
    callsResent: number;
  };
  /** Closes every socket at once; calls in flight fail. Idempotent. */
  stop: () => Promise<void>;
};

const passedMax = 1_000;
/** More than go idle at once in a process that serves a thousand streams; each is closed after some seconds. */
const idleMax = 1_024;

/**
 * The only way out of the process: every outgoing connection is made here. An address is checked when it is connected to
 * (each one that a name resolves to, literals, and the peer of the finished socket), so that a name that changes its
 * answer between a check and a call gains nothing.
 *
 * HTTP/1.1 only: one call a socket, so that a stalled stream, back-pressure or an abort touches no other call.
 */
export function createEgress({
  allow,
  lookup = createNameLookup(),
  connectTimeoutMs = 10_000,
  callsMax = 4_096,
  keepAliveMs = 4_000,
  answerBytesPerSecond,
}: Options): Egress {
  let sockets = 0;
  let connectionsOpened = 0;
  let destinationsRefused = 0;

  const allowed = (address: string, port: number): boolean =>
    !isForbiddenAddress(address) || allow.allowsAddress(address, port);

  const refuse = (host: string): Error => {
    destinationsRefused += 1;
    return new GatewayError(
      'invalid_request',
      'destination_not_allowed',
      `Connections to ${host} are not allowed: it is, or resolves to, a private or reserved address. ` +
        'Use a public host, or ask the operator to allow this one (SLUICE_EGRESS_ALLOW).',
    );
  };

  // Those of stored targets, which are looked at again for every call: a URL takes its parts out of its text each time.
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
    if (address !== null && !allow.allowsHost(url.hostname, port) && !allowed(address, port)) throw refuse(url.host);
  };

  /** Refuses a name as a whole when one of its addresses is forbidden: such a name is an attack or a mistake. */
  const guardedLookup =
    (port: number, excepted: boolean, opener: { workspaceId: string }): LookupFunction =>
    (hostname, options, callback) => {
      const request = { ...options, all: true as const, workspaceId: opener.workspaceId, isOperators: excepted };
      lookup(hostname, request, (error, addresses) => {
        const [first] = addresses ?? [];
        if (error || !first) callback(error ?? notFound(hostname), '', 0);
        else if (!excepted && addresses.some(({ address }) => !allowed(address, port)))
          callback(refuse(hostname), '', 0);
        else if (options.all) callback(null, addresses);
        else callback(null, first.address, first.family);
      });
    };

  /** Makes what opens the sockets of one origin, for one workspace or another. */
  const connectorOf: Parameters<typeof createConnections>[0]['connectorOf'] = (origin) => {
    const port = portOf(origin);
    const excepted = allow.allowsHost(origin.hostname, port);
    // Who opens the next socket. Node looks a name up at once when it is told to connect.
    const opener = { workspaceId: '' };
    const connect = buildConnector({
      allowH2: false,
      timeout: connectTimeoutMs,
      lookup: guardedLookup(port, excepted, opener),
    });
    return (workspaceId) => (options, callback) => {
      // Node does not look up a literal, so the hook above never sees one.
      if (!excepted && isIP(options.hostname) !== 0 && !allowed(options.hostname, port)) {
        queueMicrotask(() => callback(refuse(origin.host), null));
        return undefined;
      }
      opener.workspaceId = workspaceId;
      // undici's connector returns the socket, although its type does not say so.
      const opening: unknown = connect(options, (error, socket) => {
        if (error) return callback(error, null);
        if (!excepted && !allowed(socket.remoteAddress ?? '', port)) {
          socket.destroy();
          return callback(refuse(origin.host), null);
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

  const connections = createConnections({ connectorOf, callsMax, idleMax, keepAliveMs, answerBytesPerSecond });
  const dispatch = batchPerTurn(({ options, handler }: { options: CallOptions; handler: CallHandler }): void => {
    connections.dispatch(options, handler);
  });

  return {
    check,
    dispatch: (options, handler) => dispatch({ options, handler }),
    stats: () => ({ sockets, connectionsOpened, destinationsRefused, ...connections.stats() }),
    stop: connections.stop,
  };
}

function portOf(url: URL): number {
  if (url.port !== '') return Number(url.port);
  return url.protocol === 'https:' ? 443 : 80;
}

/** The address that a URL's host is, without the brackets of IPv6, and of the names of this machine; null for others. */
function literalOf(hostname: string): string | null {
  if (isLocalhost(hostname)) return '127.0.0.1';
  const bare = hostname.startsWith('[') ? hostname.slice(1, -1) : hostname;
  return isIP(bare) === 0 ? null : bare;
}

function notFound(hostname: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`${hostname} has no address`), { code: 'ENOTFOUND' });
}
