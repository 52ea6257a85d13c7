import { expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { compileConfig } from '#libs/calls/plan/compile-config.ts';
import { readCallOptions, checkCacheFlags, hasCallOptions, withOptions } from './call-options.ts';

const headers = {
  'x-gateway-request-timeout': '1500',
  'x-gateway-retry-count': '2',
  'x-gateway-forward-headers': 'X-One, x-two',
  'x-gateway-strict-open-ai-compliance': 'false',
  'x-gateway-cache': 'simple',
  'x-gateway-cache-ttl': '120',
};
const leafOf = (config: object) => compileConfig(ConfigInput.parse(config)).leaves[0];
const adjusted = (sent: Record<string, string>, config: object = {}) => {
  const options = readCallOptions(sent);
  if (options === null) throw new Error('no options were found');
  return withOptions(leafOf(config), options);
};

test('a call without such headers has no options', () => {
  expect(readCallOptions({ 'x-gateway-config': 'c', 'x-gateway-retry-count': '' })).toBeNull();
  expect(hasCallOptions({ 'x-gateway-config': 'c' })).toBe(false);
});

test.each(Object.keys(headers))('%s and its alias are seen', (name) => {
  const alias = name.replace('x-gateway-', 'x-portkey-');
  const value = headers[name as keyof typeof headers];
  for (const sent of [{ [name]: value }, { [alias]: value }]) {
    expect(hasCallOptions(sent)).toBe(true);
    expect(readCallOptions(sent)).not.toBeNull();
  }
});

test('headers override the config, and change nothing else', () => {
  const config = {
    retry: { attempts: 5, on_status_codes: [500], jitter: false },
    timeouts: { idle_ms: 9 },
    request_timeout: 60_000,
    strict_open_ai_compliance: true,
    forward_headers: ['x-three'],
  };
  expect(adjusted(headers, config)).toMatchObject({
    retry: { attempts: 2, statuses: [500], jitter: false },
    timeouts: { idleMs: 9, answerMs: 1_500 },
    strict: false,
    forwardHeaders: ['x-one', 'x-two'],
    cache: { maxAgeSeconds: 120 },
  });
});

test('a header turns a cache off, and an age alone does not turn one on', () => {
  const cached = { cache: { mode: 'simple', max_age: 600 } };
  expect(adjusted({ 'x-gateway-cache': 'false' }, cached).cache).toBeNull();
  expect(adjusted({ 'x-gateway-cache-ttl': '120' }, cached).cache).toEqual({ maxAgeSeconds: 120 });
  expect(adjusted({ 'x-gateway-cache-ttl': '120' }).cache).toBeNull();
});

test.each([
  ['x-gateway-request-timeout', '0'],
  ['x-gateway-request-timeout', '1e3'],
  ['x-gateway-retry-count', '6'],
  ['x-gateway-retry-count', '-1'],
  ['x-gateway-forward-headers', 'authorization'],
  ['x-gateway-forward-headers', 'x-gateway-api-key'],
  ['x-gateway-strict-open-ai-compliance', 'yes'],
  ['x-gateway-cache', 'semantic'],
  ['x-gateway-cache-ttl', '5'],
])('%s: %s is refused by its name', (name, value) => {
  expect(() => readCallOptions({ [name]: value })).toThrow(
    expect.objectContaining({ kind: 'invalid_request', param: name }),
  );
});

test.each(['x-gateway-retry-count', 'x-gateway-request-timeout', 'x-gateway-cache-ttl'])(
  '%s that is no number is refused with what it should be',
  (header) => {
    const problem = { code: 'invalid_value', param: header };
    for (const text of ['many', '-4', '1.5', '1e3', ' 1']) {
      expect(() => readCallOptions({ [header]: text })).toThrow(expect.objectContaining(problem));
      expect(() => readCallOptions({ [header]: text })).toThrow(
        /^Invalid '[\w-]+': expected a whole number from \d+ to \d+\.$/,
      );
    }
  },
);

test.each(['cache-force-refresh', 'debug'])('x-gateway-%s and its alias are true or false', (name) => {
  const header = `x-gateway-${name}`;
  for (const spelling of [header, `x-portkey-${name}`]) {
    for (const value of ['true', 'false', '']) checkCacheFlags({ [spelling]: value });
    for (const value of ['1', 'yes', 'TRUE', 'no', '0', 'off']) {
      expect(() => checkCacheFlags({ [spelling]: value })).toThrow(
        expect.objectContaining({
          kind: 'invalid_request',
          param: header,
          message: `Invalid value: '${value}'. Supported values are: 'true' and 'false'.`,
        }),
      );
    }
  }
  checkCacheFlags({});
});
