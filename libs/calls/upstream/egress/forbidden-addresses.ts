import { BlockList, isIP } from 'node:net';

// The registries of special addresses (RFC 6890) and some more: deprecated IPv4-compatible, IPv4-translated (RFC 2765)
// and site-local IPv6, Teredo, the local NAT64 prefix, 6to4's relay, and the one metadata service with a public address
// (Azure's 168.63.129.16).
const forbiddenV4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '224.0.0.0/4',
  '240.0.0.0/4',
];
const forbiddenV6 = [
  '::/96',
  '::ffff:0:0:0/96',
  '64:ff9b::/96',
  '64:ff9b:1::/48',
  '100::/64',
  '2001::/32',
  '2002::/16',
  'fc00::/7',
  'fe80::/10',
  'fec0::/10',
  'ff00::/8',
];

const forbidden = new BlockList();
for (const network of [...forbiddenV4, ...forbiddenV6]) addNetwork(forbidden, network);

/** Adds `address/bits` to the list. Throws when it is not a network. */
export function addNetwork(list: BlockList, network: string): void {
  const [address = '', bits = ''] = network.split('/');
  const family = isIP(address);
  const prefix = /^\d{1,3}$/.test(bits) ? Number(bits) : Number.NaN;
  if (family === 0 || !(prefix <= (family === 4 ? 32 : 128))) throw new RangeError(`${network} is not a network`);
  list.addSubnet(address, prefix, family === 4 ? 'ipv4' : 'ipv6');
}

/** Whether the list contains this address. An IPv4 address written as IPv6 (`::ffff:a.b.c.d`) is treated as IPv4. */
export function inNetworks(list: BlockList, address: string): boolean {
  return list.check(address, isIP(address) === 4 ? 'ipv4' : 'ipv6');
}

/** Private, loopback, link-local, metadata, multicast and reserved addresses, and everything that is not an address. */
export function isForbiddenAddress(address: string): boolean {
  return isIP(address) === 0 || inNetworks(forbidden, address);
}
