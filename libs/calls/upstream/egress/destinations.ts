import { isIP, type LookupFunction } from 'node:net';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { EgressAllow } from './egress-allow.ts';
import { isForbiddenAddress } from './forbidden-addresses.ts';
import { isLocalhost, type Lookup } from './name-lookup.ts';

const passedMax = 1_000;

/** Decides which hosts and addresses the process is allowed to connect to. */
export class Destinations {
  readonly #allow: EgressAllow;
  readonly #lookup: Lookup;
  /** Caches the URLs of stored targets, which every call needs, because parsing a URL is expensive. */
  readonly #passed = new Set<string>();
  #refused = 0;

  constructor(allow: EgressAllow, lookup: Lookup) {
    this.#allow = allow;
    this.#lookup = lookup;
  }

  /** How many connections were refused. */
  get refused(): number {
    return this.#refused;
  }

  /**
   * Refuses a URL that could not be called: not http(s), with credentials in it, or with a forbidden address as its
   * host. A name is not resolved here; the addresses that it resolves to are checked at every connection. Also used
   * when a host is stored. Throws GatewayError `invalid_request` / `destination_not_allowed`.
   */
  check(url: URL): void {
    if (this.#passed.has(url.href)) return;
    this.#checkParts(url);
    if (this.#passed.size < passedMax) this.#passed.add(url.href);
  }

  #checkParts(url: URL): void {
    if (url.protocol !== 'https:' && url.protocol !== 'http:') {
      throw notAllowed(`A provider's URL must start with https:// or http://, not ${url.protocol}`);
    }
    if (url.username !== '' || url.password !== '') {
      throw notAllowed("A provider's URL must not contain a user name or password. Send the key as the credential.");
    }
    const port = portOf(url);
    const address = literalOf(url.hostname);
    if (address !== null && !this.#allow.allowsHost(url.hostname, port) && !this.allowsAddress(address, port)) {
      throw this.refuse(url.hostname, port);
    }
  }

  /**
   * Whether connections to this host would be allowed by its addresses, of which it must have one. Never rejects: false
   * if the lookup fails or is beyond its workspace's share.
   */
  isReachable(hostname: string, port: number, workspaceId: string): Promise<boolean> {
    if (this.#allow.allowsHost(hostname, port)) return Promise.resolve(true);
    const address = literalOf(hostname);
    if (address !== null) return Promise.resolve(this.allowsAddress(address, port));
    return new Promise((resolve) => {
      this.#lookup(hostname, { all: true, workspaceId }, (error, addresses) => {
        resolve(!error && addresses.length > 0 && addresses.every((found) => this.allowsAddress(found.address, port)));
      });
    });
  }

  /** Refuses a name when any of its addresses is forbidden: such a name is an attack or a mistake. */
  guardedLookup(port: number, excepted: boolean, opener: { workspaceId: string }): LookupFunction {
    return (hostname, options, callback) => {
      const request = { ...options, all: true as const, workspaceId: opener.workspaceId, isOperators: excepted };
      this.#lookup(hostname, request, (error, addresses) => {
        const [first] = addresses ?? [];
        if (error || !first) callback(error ?? notFound(hostname), '', 0);
        else if (!excepted && addresses.some(({ address }) => !this.allowsAddress(address, port)))
          callback(this.refuse(hostname, port), '', 0);
        else if (options.all) callback(null, addresses);
        else callback(null, first.address, first.family);
      });
    };
  }

  allowsAddress(address: string, port: number): boolean {
    return !isForbiddenAddress(address) || this.#allow.allowsAddress(address, port);
  }

  /** Counts a refused connection and returns its error. */
  refuse(hostname: string, port: number): Error {
    this.#refused += 1;
    return notAllowed(
      `Connections to ${hostname}:${port} are not allowed: it is, or resolves to, a private or reserved address. ` +
        `Use a public host, or ask the operator to allow this one by adding it to the variable that Sluice is started with: ` +
        `SLUICE_EGRESS_ALLOW=${hostname}:${port}`,
    );
  }
}

const notAllowed = (message: string): Error => new GatewayError('invalid_request', 'destination_not_allowed', message);

export function portOf(url: URL): number {
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
