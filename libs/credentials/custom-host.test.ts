import { expect, test } from 'vitest';
import { GatewayError } from '#libs/kernel/errors.ts';
import { canonicalHost, parseCustomHost } from './custom-host.ts';

test.each([
  ['https://api.example.com/v1', 'https://api.example.com/v1'],
  ['https://API.example.com:443/v1/', 'https://api.example.com/v1'],
  ['http://127.0.0.1:8001', 'http://127.0.0.1:8001'],
  ['http://127.1:8001//', 'http://127.0.0.1:8001'],
  ['http://[::1]:80/', 'http://[::1]'],
])('%s is spelled %s', (text, canonical) => {
  expect(canonicalHost(parseCustomHost(text, 'custom_host'))).toBe(canonical);
});

test.each([
  '',
  'api.example.com',
  'ftp://example.com',
  'file:///etc/passwd',
  'https://user@example.com',
  'https://user:password@example.com',
  'https://example.com/?key=1',
  'https://example.com/v1?',
  'https://example.com/#',
  'https://example.com\\@evil.example',
  'https://exam ple.com',
  'https://example.com\t/',
  `https://example.com/${'a'.repeat(2_048)}`,
])('%s is refused with the name of the parameter', (text) => {
  expect(() => parseCustomHost(text, 'x-gateway-custom-host')).toThrow(
    expect.objectContaining({ kind: 'invalid_request', code: 'invalid_value', param: 'x-gateway-custom-host' }),
  );
  expect(() => parseCustomHost(text, 'custom_host')).toThrow(GatewayError);
});
