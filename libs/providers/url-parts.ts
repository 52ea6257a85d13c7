import { LRUCache } from 'lru-cache';
import type { Settings } from './provider.ts';

type UrlParts = { origin: string; folder: string; search: string };
const known = new WeakMap<URL, UrlParts>();

/** `URL` computes its parts on every access, and the same few URLs are used for all calls. */
export function partsOf(url: URL): UrlParts {
  let parts = known.get(url);
  if (parts === undefined) {
    parts = { origin: url.origin, folder: url.pathname.replace(/\/+$/, ''), search: url.search };
    known.set(url, parts);
  }
  return parts;
}

/** More regions than any cloud has. For the operator's own resources, the number that is in use together. */
const addressesMax = 1_000;

/**
 * Makes the `baseUrlOf` of a provider whose address contains one setting. `toAddress` is called once per value and throws
 * GatewayError invalid_request for one that cannot be part of a URL.
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
