import { LRUCache } from 'lru-cache';
import type { Settings } from './provider.ts';

type UrlParts = { origin: string; folder: string; search: string };
const known = new WeakMap<URL, UrlParts>();

/** A URL takes its parts out of its text at each look; the same few are called over and over. */
export function partsOf(url: URL): UrlParts {
  let parts = known.get(url);
  if (parts === undefined) {
    parts = { origin: url.origin, folder: url.pathname.replace(/\/+$/, ''), search: url.search };
    known.set(url, parts);
  }
  return parts;
}

/** Far more regions than a cloud has; of resources of one's own, those that are in use at a time. */
const addressesMax = 1_000;

/**
 * The `baseUrlOf` of a provider whose address is made of one setting. `toAddress` is called once for each of its values and
 * throws GatewayError invalid_request for one that no address can hold.
 */
export function addressFrom(setting: string, toAddress: (value: string) => string): (settings: Settings) => URL | null {
  const addresses = new LRUCache<string, URL>({ max: addressesMax });
  return ({ [setting]: value }) => {
    if (value === undefined || value === '') return null;
    let address = addresses.get(value);
    if (address === undefined) {
      address = new URL(toAddress(value));
      addresses.set(value, address);
    }
    return address;
  };
}
