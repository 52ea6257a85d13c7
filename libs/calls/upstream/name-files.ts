import { readFileSync, statSync } from 'node:fs';
import { isIP } from 'node:net';
import type { LookupAddress } from 'node:dns';

/** The content of the machine's own files about names. */
export type NameFiles = {
  /** The addresses of a name in the hosts file, in its order; undefined when the name is not in it. */
  addressesOf: (name: string) => LookupAddress[] | undefined;
  /** The full names that a name can refer to, in the order in which the system's resolver would query them. */
  candidatesOf: (name: string) => string[];
  /** Changes whenever resolv.conf does, and possibly the name servers with it. */
  version: () => number;
};

type Paths = { hosts: string; resolvConf: string };

const systemPaths: Paths = { hosts: '/etc/hosts', resolvConf: '/etc/resolv.conf' };
/** A container's files change when it joins a network, which must not require a restart. */
const lookAgainMs = 1_000;
// The limits of glibc (resolv.conf(5)).
const searchMax = 32;
const ndotsMax = 15;

/**
 * Reads /etc/hosts and the search list of /etc/resolv.conf, and checks every second whether they have changed. c-ares
 * reads neither for single queries, and both matter: Docker's `extra_hosts` and Kubernetes' `hostAliases` write to the
 * first, and the short name of a service in a cluster is completed with the second. A file that does not exist is
 * empty. Never throws.
 */
export function createNameFiles(paths: Paths = systemPaths, now: () => number = () => performance.now()): NameFiles {
  const hosts = watchFile(paths.hosts, readHosts, now);
  const search = watchFile(paths.resolvConf, readSearch, now);
  return {
    addressesOf: (name) => hosts().value.get(withoutLastDot(name)),
    candidatesOf: (name) => {
      if (name.endsWith('.')) return [name.slice(0, -1)];
      const { domains, ndots } = search().value;
      const completed = domains.map((domain) => `${name}.${domain}`);
      const dots = name.split('.').length - 1;
      return dots >= ndots ? [name, ...completed] : [...completed, name];
    },
    version: () => search().version,
  };
}

function watchFile<Value>(path: string, read: (text: string) => Value, now: () => number) {
  let lookedAt = Number.NEGATIVE_INFINITY;
  let stamp = '';
  const file = { value: read(''), version: 0 };
  return (): { readonly value: Value; readonly version: number } => {
    if (now() - lookedAt < lookAgainMs) return file;
    lookedAt = now();
    try {
      // Synchronous, because the thread pool must stay free. The file is local, and the check takes some microseconds.
      const stat = statSync(path, { throwIfNoEntry: false });
      const found = stat === undefined ? '' : `${stat.ino} ${stat.mtimeMs} ${stat.size}`;
      if (found === stamp) return file;
      file.value = read(stat === undefined ? '' : readFileSync(path, 'utf8'));
      file.version += 1;
      stamp = found;
    } catch {
      // The file is being replaced, or cannot be read. Its previous content applies until it can be read again.
    }
    return file;
  };
}

function readHosts(text: string): Map<string, LookupAddress[]> {
  const hosts = new Map<string, LookupAddress[]>();
  for (const [address = '', ...names] of wordsOf(text, /#/)) {
    const family = isIP(address);
    if (family === 0) continue;
    for (const name of names) {
      const key = withoutLastDot(name.toLowerCase());
      const known = hosts.get(key);
      if (known === undefined) hosts.set(key, [{ address, family }]);
      else known.push({ address, family });
    }
  }
  return hosts;
}

/** The last `search` or `domain` line applies. */
function readSearch(text: string): { domains: string[]; ndots: number } {
  let domains: string[] = [];
  let ndots = 1;
  for (const [keyword, ...values] of wordsOf(text, /[#;]/)) {
    if (keyword === 'search') domains = values.slice(0, searchMax);
    else if (keyword === 'domain') domains = values.slice(0, 1);
    else if (keyword === 'options') {
      for (const value of values) {
        const digits = /^ndots:(\d+)$/.exec(value)?.[1];
        if (digits !== undefined) ndots = Math.min(Number(digits), ndotsMax);
      }
    }
  }
  return { domains: domains.map(withoutLastDot).filter((domain) => domain !== ''), ndots };
}

function wordsOf(text: string, comment: RegExp): string[][] {
  return text
    .split('\n')
    .map((line) => (line.split(comment, 1)[0] ?? '').split(/\s+/).filter((word) => word !== ''))
    .filter((words) => words.length > 1);
}

const withoutLastDot = (name: string): string => (name.endsWith('.') ? name.slice(0, -1) : name);
