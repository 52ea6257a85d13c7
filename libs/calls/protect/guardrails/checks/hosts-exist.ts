import type { Egress } from '#libs/calls/upstream/egress/egress.ts';

/** How many names one check looks up, and how long all of the lookups can take. */
const namesMax = 50;
const waitMs = 3_000;

/**
 * Returns for each list whether all of its hosts have a public address. Hosts that are not looked up in time count as
 * having none, and if there are too many names, none is looked up. Names of private hosts count as unknown, because a
 * verdict must not reveal what exists in the operator's network. Throws the reason of `signal`.
 */
export async function hostsExist(
  egress: Pick<Egress, 'isReachable'>,
  hosts: readonly (readonly string[])[],
  { workspaceId, signal }: { workspaceId: string; signal: AbortSignal },
): Promise<boolean[]> {
  const names = [...new Set(hosts.flat())];
  if (names.length > namesMax) return hosts.map(() => false);
  const found = new Set<string>();
  const ended = Promise.withResolvers<void>();
  const late = setTimeout(ended.resolve, waitMs);
  const left = (): void => ended.reject(signal.reason as Error);
  signal.addEventListener('abort', left, { once: true });
  const look = async (name: string): Promise<void> => {
    if (await egress.isReachable(name, 443, workspaceId)) found.add(name);
  };
  try {
    signal.throwIfAborted();
    await Promise.race([ended.promise, Promise.all(names.map(look))]);
  } finally {
    clearTimeout(late);
    signal.removeEventListener('abort', left);
  }
  return hosts.map((ofText) => ofText.every((name) => found.has(name)));
}
