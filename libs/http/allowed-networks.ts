import { isIPv6 } from 'node:net';
import { GatewayError } from '#libs/kernel/errors.ts';
import { parseNetworks } from './client-address.ts';

/** The networks that an API key, or every key of a workspace, can be used from. */
export type AllowedNetworks = {
  readonly of: 'API key' | 'workspace';
  /** The networks as they were given. */
  readonly texts: readonly string[];
  has(address: string): boolean;
  /** Whether one of them contains the whole of another network. */
  contains(network: string): boolean;
};

/** null for no restriction. A list that this process cannot read allows no address. */
export function allowedNetworks(
  of: AllowedNetworks['of'],
  texts: readonly string[] | null | undefined,
): AllowedNetworks | null {
  if (!texts || texts.length === 0) return null;
  const list = readList(texts);
  // An IPv4 address within IPv6 counts as the IPv4 address, in every spelling.
  const has = (address: string): boolean => list?.check(address, isIPv6(address) ? 'ipv6' : 'ipv4') === true;
  const contains = (network: string): boolean => {
    const [address = '', bits = Number.POSITIVE_INFINITY] = network.split('/');
    const isWider = (text: string): boolean => Number(text.split('/')[1] ?? Number.POSITIVE_INFINITY) <= Number(bits);
    return readList(texts.filter(isWider))?.check(address, isIPv6(address) ? 'ipv6' : 'ipv4') === true;
  };
  return Object.freeze({ of, texts, has, contains });
}

function readList(texts: readonly string[]) {
  try {
    return parseNetworks(texts.join(','));
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}

/** Throws forbidden for an address that is missing from one of the lists. */
export function requireNetwork(lists: readonly AllowedNetworks[], address: string): void {
  const refusing = lists.find((networks) => !networks.has(address));
  if (refusing === undefined) return;
  const owner = refusing.of === 'API key' ? 'This API key' : 'The workspace of this API key';
  const message = `${owner} does not allow requests from ${address || 'an unknown address'}. Send it from one of its allowed_networks, or ask an admin to extend them.`;
  throw new GatewayError('forbidden', 'address_not_allowed', message);
}
