import { isIPv6 } from 'node:net';
import { LRUCache } from 'lru-cache';
import { GatewayError } from '#libs/kernel/errors.ts';

export type WrongKeyLimit = {
  /**
   * Uses up one attempt of the address. Returns a function that restores it, for a key that turns out to be valid.
   * Throws rate_limited `too_many_failed_attempts` when none is left.
   */
  take: (address: string) => () => void;
};

type Bucket = { left: number; atMs: number };

// About 2 MB. The addresses that were inactive for longest are removed first.
const addressesMax = 20_000;

/**
 * Slows down guessing of keys: each address has `perMinute` attempts with wrong keys, which are refilled at that rate.
 * Only wrong keys use them up, so a known key from the same address still works. A token that was not seen before
 * waits, because checking its signature takes time. An IPv6 client has a whole /64, which counts as one address. 0: no
 * limit. `now` is monotonic, in milliseconds.
 */
export function createWrongKeyLimit(perMinute: number, now: () => number): WrongKeyLimit {
  const buckets = new LRUCache<string, Bucket>({ max: addressesMax });
  const perMs = perMinute / 60_000;
  return {
    take(address) {
      if (perMinute === 0) return () => {};
      const key = toAddressGroup(address);
      const atMs = now();
      const bucket = buckets.get(key) ?? { left: perMinute, atMs };
      bucket.left = Math.min(perMinute, bucket.left + (atMs - bucket.atMs) * perMs);
      bucket.atMs = atMs;
      buckets.set(key, bucket);
      if (bucket.left < 1) throw tooMany((1 - bucket.left) / perMs);
      bucket.left -= 1;
      return () => void (bucket.left += 1);
    },
  };
}

/**
 * The /64 of an IPv6 address, which is the smallest network that a provider assigns to a customer.
 *
 * @testOnly
 */
export function toAddressGroup(address: string): string {
  if (!isIPv6(address)) return address;
  const [head = '', tail] = address.split('%', 1)[0]?.split('::', 2) ?? [];
  const front = head === '' ? [] : head.split(':');
  const back = tail === undefined || tail === '' ? [] : tail.split(':');
  const zeros =
    tail === undefined ? [] : Array.from({ length: Math.max(0, 8 - front.length - back.length) }, () => '0');
  const groups = [...front, ...zeros, ...back].slice(0, 4);
  return `${groups.map((group) => Number.parseInt(group, 16).toString(16)).join(':')}::/64`;
}

const tooMany = (waitMs: number): GatewayError =>
  new GatewayError(
    'rate_limited',
    'too_many_failed_attempts',
    'Too many requests with a wrong API key or sign-in token came from your address. Check your key or token, and try again later. Known API keys and previously accepted tokens still work, but new tokens are not checked until then.',
    { retryAfterMs: Math.max(1_000, Math.ceil(waitMs)) },
  );
