import type { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { createClientAddress, parseNetworks } from './client-address.ts';

const ask = (trusted: string, remoteAddress: string, forwarded?: string): string =>
  createClientAddress(parseNetworks(trusted))({
    headers: forwarded === undefined ? {} : { 'x-forwarded-for': forwarded },
    socket: { remoteAddress } as Socket,
  });

test.each([
  ['without proxies the header counts for nothing', '', '192.0.2.1', '198.51.100.7', '192.0.2.1'],
  ['a stranger is not believed', '10.0.0.0/8', '192.0.2.1', '198.51.100.7', '192.0.2.1'],
  ["a proxy's client", '10.0.0.0/8', '10.1.2.3', '198.51.100.7', '198.51.100.7'],
  ['what the client wrote itself', '10.0.0.0/8', '10.1.2.3', '203.0.113.9, 198.51.100.7', '198.51.100.7'],
  ['proxies behind proxies', '10.0.0.0/8, ::1', '::1', '1.1.1.1, 198.51.100.7, 10.9.9.9', '198.51.100.7'],
  ['IPv4 written as IPv6', '10.0.0.0/8', '::ffff:10.1.2.3', '::ffff:198.51.100.7', '198.51.100.7'],
  ['IPv6', '2001:db8::/32', '2001:db8::5', '2001:db9::7', '2001:db9::7'],
  ['a proxy that says nothing', '10.0.0.0/8', '10.1.2.3', undefined, '10.1.2.3'],
  ['a proxy that says nonsense', '10.0.0.0/8', '10.1.2.3', '198.51.100.7, unknown', '10.1.2.3'],
  ['proxies only', '10.0.0.0/8', '10.1.2.3', '10.4.4.4', '10.4.4.4'],
])('%s', (_what, trusted, socket, forwarded, address) => {
  expect(ask(trusted, socket, forwarded)).toBe(address);
});

test.each(['10.0.0.0/33', '10.0.0', 'proxy.example', '10.0.0.0/8/9', '10.0.0.0/', '::/129'])(
  '%j is refused as a network',
  (entry) => {
    expect(() => parseNetworks(`192.0.2.1 ${entry}`)).toThrow(RangeError);
  },
);

test.each([
  ['203.0.113.9:52114', '203.0.113.9'],
  ['[2001:db8::1]:52114', '2001:db8::1'],
  ['[2001:db8::1]', '2001:db8::1'],
  ['2001:db8::1', '2001:db8::1'],
  ['203.0.113.9:port', '10.0.0.1'],
])('what a proxy sends as %s is the address %s', (forwarded, address) => {
  const getRegionAddress = createClientAddress(parseNetworks('10.0.0.0/8'));
  const request = { headers: { 'x-forwarded-for': forwarded }, socket: { remoteAddress: '10.0.0.1' } as Socket };
  expect(getRegionAddress(request)).toBe(address);
});
