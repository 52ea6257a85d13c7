/* oxlint-disable unicorn/no-thenable -- the member's name is the interface's */
import { expect, test } from 'vitest';
import { ConfigInput } from './config.ts';
import { tryParse } from '../parse.ts';

const problemOf = (config: unknown) => {
  const result = tryParse(ConfigInput, config, 'config');
  return result.ok ? null : { code: result.problem.code, param: result.problem.param, message: result.problem.message };
};
const leaf = { virtual_key: 'a' };
const conditional = (strategy: object, targets: object[] = [{ name: 'a', virtual_key: 'a' }]) => ({
  strategy: {
    mode: 'conditional',
    conditions: [{ query: { 'metadata.plan': 'pro' }, then: 'a' }],
    default: 'a',
    ...strategy,
  },
  targets,
});

test.each<[string, object]>([
  ['one target', leaf],
  ['nothing but a retry', { retry: { attempts: 2 } }],
  ['a virtual key as provider', { provider: '@a' }],
  ['a virtual key under both names', { provider: '@a', virtual_key: 'a' }],
  ['a strategy of one', { strategy: { mode: 'single' }, targets: [leaf] }],
  ['a single target without a strategy', { targets: [leaf] }],
  ['fallback', { strategy: { mode: 'fallback', on_status_codes: [429, 246] }, targets: [leaf, leaf] }],
  [
    'loadbalance with a target that is off',
    {
      strategy: {
        mode: 'loadbalance',
        sticky: { enabled: true, hash_fields: ['metadata.user', 'params.messages[0].role'], ttl: 60 },
      },
      targets: [
        { ...leaf, weight: 0.7 },
        { ...leaf, weight: 0 },
      ],
    },
  ],
  [
    'a loadbalance whose conversations move',
    { strategy: { mode: 'loadbalance', sticky: { enabled: false } }, targets: [leaf] },
  ],
  ['conditional', conditional({})],
  [
    'settings under their short names',
    { provider: 'azure', resource_name: 'r', deployment_id: 'd', api_version: 'v1' },
  ],
  ['five levels', [1, 2, 3, 4, 5].reduce<object>((inner) => ({ targets: [inner] }), leaf)],
  [
    'both cache forms',
    { strategy: { mode: 'fallback' }, targets: [{ cache: 'simple' }, { cache: { mode: 'simple', max_age: 60 } }] },
  ],
])('%s is accepted', (_what, config) => {
  expect(problemOf(config)).toBeNull();
});

test.each<[string, unknown, { param: string | null; code?: string; message?: RegExp }]>([
  ['text', 'pc-slug', { param: 'config', code: 'invalid_type' }],
  ['an unknown member', { virtualkey: 'a' }, { param: 'config.virtualkey', code: 'unknown_parameter' }],
  [
    'an unknown member of a nested target',
    { strategy: { mode: 'fallback' }, targets: [leaf, { targets: [{ ...leaf, retries: 1 }] }] },
    { param: 'config.targets[1].targets[0].retries', code: 'unknown_parameter' },
  ],
  ['too many retries', { retry: { attempts: 6 } }, { param: 'config.retry.attempts', code: 'integer_above_max_value' }],
  [
    'two opposite spellings',
    { retry: { attempts: 1, use_retry_after_header: true, use_retry_after_headers: false } },
    { param: 'config.retry.use_retry_after_header' },
  ],
  ['a cache age below the bound', { cache: { mode: 'simple', max_age: 0 } }, { param: 'config.cache.max_age' }],
  ['a negative weight', { targets: [{ weight: -1 }] }, { param: 'config.targets[0].weight' }],
  ['no time at all', { request_timeout: 0 }, { param: 'config.request_timeout' }],
  [
    'credentials beside targets',
    { provider: 'openai', targets: [leaf] },
    { param: 'config.provider', message: /into the targets/ },
  ],
  ['a key beside targets', { api_key: 'k', targets: [leaf] }, { param: 'config.api_key' }],
  ['a setting beside targets', { aws_region: 'r', targets: [leaf] }, { param: 'config.aws_region' }],
  ['several targets without a strategy', { targets: [leaf, leaf] }, { param: 'config.strategy' }],
  ['a single of two', { strategy: { mode: 'single' }, targets: [leaf, leaf] }, { param: 'config.strategy.mode' }],
  ['a strategy without targets', { strategy: { mode: 'fallback' } }, { param: 'config.targets' }],
  ['no targets', { strategy: { mode: 'fallback' }, targets: [] }, { param: 'config.targets', code: 'empty_array' }],
  [
    'weights that are all 0',
    {
      strategy: { mode: 'loadbalance' },
      targets: [
        { ...leaf, weight: 0 },
        { ...leaf, weight: 0 },
      ],
    },
    { param: 'config.targets', message: /all weights are 0/ },
  ],
  [
    'a member of another strategy',
    { strategy: { mode: 'loadbalance', on_status_codes: [500] }, targets: [leaf] },
    { param: 'config.strategy.on_status_codes', message: /'fallback'/ },
  ],
  ['a conditional without a default', conditional({ default: undefined }), { param: 'config.strategy.default' }],
  ['a conditional without conditions', conditional({ conditions: undefined }), { param: 'config.strategy.conditions' }],
  ['a default that is no target', conditional({ default: 'b' }), { param: 'config.strategy.default', message: /'b'/ }],
  [
    'a then that is no target',
    conditional({ conditions: [{ query: { 'metadata.a': 1 }, then: 'z' }] }),
    { param: 'config.strategy.conditions[0].then' },
  ],
  [
    'two targets of one name',
    conditional({}, [
      { name: 'a', virtual_key: 'a' },
      { name: 'a', virtual_key: 'b' },
    ]),
    { param: 'config.targets[1].name' },
  ],
  ['a virtual key and an api key', { virtual_key: 'a', api_key: 'k' }, { param: 'config.api_key' }],
  ['two virtual keys', { virtual_key: 'a', provider: '@b' }, { param: 'config.virtual_key' }],
  ['a setting beside a virtual key', { virtual_key: 'a', aws_region: 'r' }, { param: 'config.aws_region' }],
  [
    'a setting under two names',
    { provider: 'azure', resource_name: 'r', azure_resource_name: 's' },
    { param: 'config.resource_name' },
  ],
  ['an override of stream', { override_params: { stream: true } }, { param: 'config.override_params.stream' }],
  ['an override by no model', { override_params: { model: 3 } }, { param: 'config.override_params.model' }],
  ['a drop of the model', { drop_params: ['model'] }, { param: 'config.drop_params[0]' }],
  ['a drop that is no path', { drop_params: ['tools[x]'] }, { param: 'config.drop_params[0]' }],
  ['a credential as forwarded header', { forward_headers: ['Authorization'] }, { param: 'config.forward_headers[0]' }],
  [
    'a sticky hash over nothing',
    { strategy: { mode: 'loadbalance', sticky: { hash_fields: ['user'] } }, targets: [leaf] },
    { param: 'config.strategy.sticky.hash_fields[0]' },
  ],
  [
    'more values than a check takes time for',
    { ...leaf, override_params: { x: Array.from({ length: 4_000 }, () => []) } },
    { param: 'config', message: /4000 JSON values/ },
  ],
  [
    'six levels',
    [1, 2, 3, 4, 5, 6].reduce<object>((inner) => ({ targets: [inner] }), leaf),
    { param: 'config.targets[0].targets[0].targets[0].targets[0].targets[0].targets', message: /5 levels/ },
  ],
  [
    'fifty-one targets',
    {
      strategy: { mode: 'fallback' },
      targets: [{ strategy: { mode: 'fallback' }, targets: Array.from({ length: 50 }, () => leaf) }, leaf],
    },
    { param: 'config.targets', message: /50/ },
  ],
  [
    'JSON of endless depth',
    { override_params: { a: JSON.parse('['.repeat(5_000) + ']'.repeat(5_000)) } },
    { param: 'config', message: /64 levels/ },
  ],
  ['a long text', { override_params: { a: 'x'.repeat(65_536) } }, { param: 'config', message: /65536 bytes/ }],
])('%s is refused at its place', (_what, config, { param, code = expect.any(String), message = /./ }) => {
  expect(problemOf(config)).toMatchObject({ param, code, message: expect.stringMatching(message) });
});

const query = (value: unknown) => conditional({ conditions: [{ query: value, then: 'a' }] });
const at = (path: string) => `config.strategy.conditions[0].query${path}`;

test.each<[string, unknown, string]>([
  ['nothing', {}, ''],
  ['an unknown operator', { 'params.model': { $like: 'a' } }, '.params.model.$like'],
  ['an unknown operator at the top', { $not: [] }, '.$not'],
  ['a path of nothing', { model: 'a' }, '.model'],
  ['a bad pattern', { 'params.model': { $regex: '(' } }, '.params.model.$regex'],
  ['a pattern that could not be linear', { 'params.model': { $regex: '(a)\\1' } }, '.params.model.$regex'],
  ['a list that is none', { 'params.model': { $in: 'a' } }, '.params.model.$in'],
  ['an order of a boolean', { 'params.n': { $gt: true } }, '.params.n.$gt'],
  ['a list without conditions', { $or: [] }, '.$or'],
  [
    'a mistake inside',
    { $and: [{ 'metadata.a': 1 }, { $or: [{ 'metadata.b': { $foo: 1 } }] }] },
    '.$and[1].$or[0].metadata.b.$foo',
  ],
  ['no operator', { 'params.model': {} }, '.params.model'],
])('a query of %s is refused at its place', (_what, value, path) => {
  expect(problemOf(query(value))).toMatchObject({ param: at(path) });
});

test('both spellings of the Retry-After flag mean the same, and the default is to obey', () => {
  const flag = (retry: object) =>
    ConfigInput.parse({ retry: { attempts: 1, ...retry } }).retry?.use_retry_after_headers;
  expect(flag({})).toBe(true);
  expect(flag({ use_retry_after_header: false })).toBe(false);
  expect(flag({ use_retry_after_headers: false })).toBe(false);
});

test('a config has as many regular expressions as may be compiled with every call, and no more', () => {
  const query = (count: number) => ({ $or: Array.from({ length: count }, () => ({ 'metadata.a': { $regex: 'x' } })) });
  const config = (count: number) => conditional({ conditions: [{ query: query(count), then: 'a' }] });
  expect(problemOf(config(100))).toBeNull();
  expect(problemOf(config(101))?.message).toContain('100 regular expressions');
});

test('expressions whose repetitions make them huge are refused before they are compiled', () => {
  const config = (...rules: string[]) => ({
    ...leaf,
    input_guardrails: rules.map((rule) => ({ regexMatch: { rule } })),
  });
  expect(problemOf(config(`(${'a'.repeat(900)}){1000}`))?.message).toContain('too large');
  const large = 'a{1000}'.repeat(3);
  expect(problemOf(config(...Array.from({ length: 8 }, (_, n) => `${n}${large}`)))?.message).toContain('too large');
  expect(problemOf(config(...Array.from({ length: 8 }, () => large)))).toBeNull();
});

test.each([
  'Authorization',
  'Cookie',
  'Proxy-Authenticate',
  'HTTP2-Settings',
  'Ocp-Apim-Subscription-Key',
  'X-Gateway-Api-Key',
])('the header %s is never forwarded', (name) => {
  expect(problemOf({ ...leaf, forward_headers: ['x-customer', name] })).toMatchObject({
    code: 'invalid_value',
    param: 'config.forward_headers[1]',
  });
});
