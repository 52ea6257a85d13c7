import { lookup, type LookupAddress, type LookupOptions } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { promisify } from 'node:util';
import { LRUCache } from 'lru-cache';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createFairPool } from '#libs/kernel/sharing/fair-pool.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { createNameFiles, type NameFiles } from '../name-files.ts';

export type LookupRequest = LookupOptions & {
  all: true;
  /** The workspace. Its running lookups count against its share. */
  workspaceId?: string;
  /** The operator named this host, so the system's resolver can be queried too. */
  isOperators?: boolean;
};

/** Resolves a name to all its addresses. */
export type Lookup = (
  hostname: string,
  options: LookupRequest,
  callback: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void;

type Options = {
  files?: NameFiles;
  /** `address:port` of name servers; absent: those of resolv.conf. */
  servers?: readonly string[];
  /** The timeout of one query to one name server. It is queried twice, and the second query waits longer. */
  timeoutMs?: number;
  /** The maximum of running lookups, of all workspaces together. Name servers of containers handle some hundreds. */
  lookupsMax?: number;
  now?: () => number;
  /** getaddrinfo. */
  systemLookup?: (name: string) => Promise<LookupAddress[]>;
};

type Found = { addresses: LookupAddress[]; ttlMs: number };
type Known = { expiresAt: number } & ({ addresses: LookupAddress[] } | { error: NodeJS.ErrnoException });
type Callback = Parameters<Lookup>[2];

const knownMax = 1_000;
// A name server's own time to live is used between these limits.
const ttlMsMin = 1_000;
const ttlMsMax = 30_000;
const failedMs = 1_000;
/** How long to wait for IPv6 addresses when the IPv4 addresses have arrived. */
const secondFamilyMs = 300;
const notThere: ReadonlySet<unknown> = new Set(['ENOTFOUND', 'ENODATA']);

/**
 * Looks names up by querying name servers (c-ares), without getaddrinfo, which runs on libuv's four threads. These also
 * do all file access, and a name server that does not answer blocks each for up to a minute. Here a lookup is a UDP
 * packet and a timer. Concurrent lookups of a name share one query, its result is cached for some seconds, and a
 * workspace has at most three quarters of the running lookups.
 *
 * The hosts file and the search list are used as by the system (see `createNameFiles`). The system's other sources
 * (mDNS, LDAP) are only queried for names that the operator wrote into SLUICE_EGRESS_ALLOW and that no name server
 * knows, one at a time.
 */
export function createNameLookup(options: Options = {}): Lookup {
  const { files = createNameFiles(), servers, timeoutMs = 1_500, lookupsMax = 256 } = options;
  const now = options.now ?? (() => performance.now());
  const known = new LRUCache<string, Known>({ max: knownMax });
  const underWay = new Map<string, Callback[]>();
  const shares = createFairPool({ units: lookupsMax });
  const askSystem = oneByOne(options.systemLookup ?? getaddrinfo);
  let resolver: Resolver | undefined;
  let version: number | undefined;

  /** The resolver reads resolv.conf when it is created, so it is created again when that file has changed. */
  const nameServers = (): Resolver => {
    if (resolver === undefined || version !== files.version()) {
      resolver = new Resolver({ timeout: timeoutMs, tries: 2 });
      if (servers !== undefined) resolver.setServers(servers);
      version = files.version();
    }
    return resolver;
  };

  /** Queries the full names that this one can refer to, until one has addresses. */
  const ask = async (name: string, isOperators: boolean): Promise<Found> => {
    const asked = nameServers();
    let failure = notFound(name);
    for (const candidate of files.candidatesOf(name)) {
      try {
        return await askForBoth(asked, candidate);
      } catch (error) {
        // The first error is more informative, for example that a name server failed; the others can be completed names
        // that do not exist.
        if (!notThere.has(codeOf(error)) && notThere.has(failure.code)) failure = error as NodeJS.ErrnoException;
        // A server that did not answer would not answer for the other names either.
        if (codeOf(error) === 'ETIMEOUT') break;
      }
    }
    const isUnknown = notThere.has(failure.code) || failure.code === 'ECONNREFUSED';
    if (isOperators && isUnknown) return { addresses: await askSystem(name), ttlMs: ttlMsMin };
    throw failure;
  };

  const lookUp = async (key: string, name: string, isOperators: boolean): Promise<Known> => {
    try {
      const { addresses, ttlMs } = await ask(name, isOperators);
      const entry = { addresses, expiresAt: now() + Math.min(Math.max(ttlMs, ttlMsMin), ttlMsMax) };
      known.set(key, entry);
      return entry;
    } catch (error) {
      const entry = { error: error as NodeJS.ErrnoException, expiresAt: now() + failedMs };
      known.set(key, entry);
      return entry;
    }
  };

  return (hostname, { workspaceId = '', isOperators = false }, callback) => {
    const name = hostname.toLowerCase();
    const key = isOperators ? `${name} operator` : name;
    const local = files.addressesOf(name) ?? (isLocalhost(name) ? loopback : undefined);
    const entry = local === undefined ? known.get(key) : { addresses: local, expiresAt: Number.POSITIVE_INFINITY };
    if (entry !== undefined && entry.expiresAt > now()) return queueMicrotask(() => tell(callback, entry));
    const waiting = underWay.get(key);
    if (waiting !== undefined) return void waiting.push(callback);
    if (!shares.tryTake(workspaceId)) return queueMicrotask(() => callback(tooManyLookups(), []));
    const callbacks = [callback];
    underWay.set(key, callbacks);
    void lookUp(key, name, isOperators).then((found) => {
      underWay.delete(key);
      shares.give(workspaceId);
      for (const each of callbacks) tell(each, found);
    });
  };
}

function tell(callback: Callback, entry: Known): void {
  if ('error' in entry) callback(entry.error, []);
  else callback(null, [...entry.addresses]);
}

/**
 * Returns the addresses of both families, IPv4 first, because where only one family has a route, it is IPv4. Rejects
 * with the error of the IPv4 query when there are none.
 */
async function askForBoth(resolver: Resolver, name: string): Promise<Found> {
  const second = settled(resolver.resolve6(name, { ttl: true }), 6);
  const first = await settled(resolver.resolve4(name, { ttl: true }), 4);
  const late =
    first.addresses.length === 0
      ? await second
      : await Promise.race([second, sleep(secondFamilyMs).then(() => nothing)]);
  const addresses = [...first.addresses, ...late.addresses];
  if (addresses.length > 0) return { addresses, ttlMs: Math.min(first.ttlMs, late.ttlMs) };
  // A failed query is more informative than "no address of this family".
  throw notThere.has(codeOf(first.error)) ? (late.error ?? first.error) : first.error;
}

type Answered = Found & { error?: unknown };
const nothing: Answered = { addresses: [], ttlMs: Number.POSITIVE_INFINITY };

async function settled(asked: Promise<{ address: string; ttl: number }[]>, family: number): Promise<Answered> {
  try {
    const records = await asked;
    const addresses = records.map(({ address }) => ({ address, family }));
    return { addresses, ttlMs: Math.min(...records.map(({ ttl }) => ttl * 1_000)) };
  } catch (error) {
    return { ...nothing, error };
  }
}

const lookupAll = promisify(lookup);
const getaddrinfo = (name: string): Promise<LookupAddress[]> => lookupAll(name, { all: true });

/** One name at a time, so that three of libuv's threads stay free while getaddrinfo waits. */
function oneByOne(find: (name: string) => Promise<LookupAddress[]>): typeof find {
  let last: Promise<unknown> = Promise.resolve();
  return (name) => {
    const mine = last.then(() => find(name));
    last = mine.catch(() => {});
    return mine;
  };
}

/** `localhost` and the names below it are this machine, whatever a name server answers (RFC 6761 6.3). */
export function isLocalhost(name: string): boolean {
  return /(^|\.)localhost\.?$/.test(name);
}

const loopback: LookupAddress[] = [
  { address: '127.0.0.1', family: 4 },
  { address: '::1', family: 6 },
];

function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined;
}

function notFound(hostname: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`${hostname} has no address`), { code: 'ENOTFOUND' });
}

function tooManyLookups(): Error {
  return new GatewayError(
    'rate_limited',
    'too_many_calls',
    'Too many host name lookups of this workspace are in progress. Send the request again shortly.',
    { retryAfterMs: 1_000 },
  );
}
