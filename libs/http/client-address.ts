import type { IncomingMessage } from 'node:http';
import type { Request } from 'express';
import { BlockList, isIP, isIPv6 } from 'node:net';

/** The address that a request came from. An IPv4 address inside IPv6 (`::ffff:…`) becomes the IPv4 address. */
export type ClientAddress = (request: Pick<IncomingMessage, 'headers' | 'socket'>) => string;

// More proxies in a row than any real setup has. The client made up a longer list.
const hopsMax = 20;

/**
 * Finds the address that a request came from. X-Forwarded-For is read from its end for as long as the previous address
 * is one of `trustedProxies`, because a client can write anything in front of the entry of the first trusted proxy.
 * Without trusted proxies the header is ignored.
 */
export function createClientAddress(trustedProxies: BlockList | null): ClientAddress {
  const isTrusted = (address: string): boolean =>
    trustedProxies?.check(address, isIPv6(address) ? 'ipv6' : 'ipv4') === true;
  return ({ headers, socket }) => {
    let address = plain(socket.remoteAddress ?? '');
    if (trustedProxies === null || isIP(address) === 0) return address;
    const forwarded = headers['x-forwarded-for'];
    const hops = (Array.isArray(forwarded) ? forwarded.join(',') : (forwarded ?? '')).split(',').slice(-hopsMax);
    while (isTrusted(address)) {
      const hop = plain(hops.pop()?.trim() ?? '');
      if (isIP(hop) === 0) break;
      address = hop;
    }
    return address;
  };
}

/** The address of a request, if its app was created with a `clientAddress`; otherwise null. */
export function getClientAddress(request: Request): string | null {
  const getRegionAddress = request.app.get(clientAddressSetting) as ClientAddress | undefined;
  return getRegionAddress?.(request) ?? null;
}

/** The setting of the Express app that contains it, so that requests whose address is never read cost nothing. */
export const clientAddressSetting = 'sluice client address';

/** Some proxies add the port (Azure's Application Gateway), and then write IPv6 addresses in brackets. */
const plain = (address: string): string =>
  address
    .replace(/^\[([\da-f:.]+)\](?::\d{1,5})?$|^(\d+\.\d+\.\d+\.\d+):\d{1,5}$/i, '$1$2')
    .replace(/^::ffff:(?=\d+\.)/i, '');

/**
 * Parses a list of addresses and networks (`10.0.0.0/8, ::1`), separated by commas or spaces. null for an empty list.
 * Throws RangeError that names the invalid entry.
 */
export function parseNetworks(text: string): BlockList | null {
  const entries = text.split(/[\s,]+/).filter((entry) => entry !== '');
  if (entries.length === 0) return null;
  const list = new BlockList();
  for (const entry of entries) {
    const [address = '', bits, more] = entry.split('/');
    const family = isIPv6(address) ? 'ipv6' : 'ipv4';
    const bitsMax = family === 'ipv6' ? 128 : 32;
    const length = bits === undefined ? bitsMax : /^\d{1,3}$/.test(bits) ? Number(bits) : Number.NaN;
    if (isIP(address) === 0 || more !== undefined || !(length <= bitsMax)) {
      throw new RangeError(
        `'${entry}' is not an IP address or network. Use a form like 10.0.0.0/8, 192.0.2.1 or 2001:db8::/32`,
      );
    }
    list.addSubnet(address, length, family);
  }
  return list;
}
