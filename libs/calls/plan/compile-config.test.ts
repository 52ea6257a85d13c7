import { expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { compileConfig } from './compile-config.ts';
import { editParams } from './edit-params.ts';

const leavesOf = (config: object) => compileConfig(ConfigInput.parse(config)).leaves;

test('leaves have the paths that clients see', () => {
  const inner = { strategy: { mode: 'fallback' }, targets: [{ virtual_key: 'b' }, { virtual_key: 'c' }] };
  const config = { strategy: { mode: 'fallback' }, targets: [{ virtual_key: 'a' }, inner] };
  expect(leavesOf(config).map(({ path }) => path)).toEqual([
    'config.targets[0]',
    'config.targets[1].targets[0]',
    'config.targets[1].targets[1]',
  ]);
  expect(leavesOf({ virtual_key: 'a' }).map(({ path }) => path)).toEqual(['config']);
});

test('parameters are merged from level to level; of everything else, the nearest definition applies', () => {
  const [first, second] = leavesOf({
    strategy: { mode: 'fallback' },
    retry: { attempts: 3, on_status_codes: [500] },
    cache: 'simple',
    request_timeout: 1_000,
    custom_host: 'https://a.example/v1',
    strict_open_ai_compliance: false,
    forward_headers: ['X-One'],
    unsupported_params: 'refuse',
    override_params: { model: 'outer', temperature: 0, metadata: { a: 1 } },
    default_params: { top_p: 0.5 },
    drop_params: ['user'],
    cb_config: {},
    targets: [
      {
        provider: '@k',
        retry: { attempts: 1 },
        cache: null,
        request_timeout: 5,
        override_params: { model: 'inner', metadata: { b: 2 } },
        drop_params: ['seed'],
      },
      { provider: 'openai', api_key: 'sk-1', custom_host: 'https://b.example' },
    ],
  });
  expect(first).toMatchObject({
    credentials: { virtualKey: 'k', provider: null, customHost: 'https://a.example/v1' },
    retry: { attempts: 1, statuses: null, obeysRetryAfter: true, jitter: true },
    cache: null,
    timeouts: { answerMs: 5 },
    strict: false,
    unsupportedParams: 'refuse',
    forwardHeaders: ['x-one'],
    drops: [['user'], ['seed']],
    breaker: { failuresInRow: 5 },
  });
  expect(Object.fromEntries(first.overrides)).toEqual({ model: '"inner"', temperature: '0', metadata: '{"b":2}' });
  expect(second).toMatchObject({
    credentials: { provider: 'openai', customHost: 'https://b.example' },
    retry: { attempts: 3, statuses: [500] },
    cache: { maxAgeSeconds: 604_800 },
    timeouts: { answerMs: 1_000 },
  });
  expect(second?.credentials.apiKey?.reveal()).toBe('sk-1');
});

test('settings keep the names of virtual keys, and no secret is shown by accident', () => {
  const [leaf] = leavesOf({
    provider: 'bedrock',
    aws_region: 'eu-1',
    aws_secret_access_key: 'hush',
    api_version: 'v1',
  });
  expect(leaf.credentials.settings).toEqual({ aws_region: 'eu-1', azure_api_version: 'v1' });
  expect(leaf.credentials.secrets['aws_secret_access_key']?.reveal()).toBe('hush');
  expect(JSON.stringify(leaf)).not.toContain('hush');
});

const params = {
  model: 'm',
  temperature: 1,
  top_p: null,
  user: 'u',
  tools: [{ function: { name: 'a', strict: true } }, { function: { name: 'b' } }],
};
const edit = (config: object) => editParams(leavesOf(config)[0], params);

test('defaults fill gaps, overrides replace, and drops are applied last', () => {
  expect(
    edit({
      default_params: { temperature: 9, seed: 1, top_p: 0.5, n: 2 },
      override_params: { user: 'o', seed: 2 },
      drop_params: ['user', 'n', 'nothing'],
    }),
  ).toEqual({ edits: { seed: '2', user: undefined }, model: null });
});

test('dropping a path inside a member rewrites that member and no other', () => {
  expect(edit({ drop_params: ['tools[*].function.strict', 'model.x', 'tools[5]'] }).edits).toEqual({
    tools: '[{"function":{"name":"a"}},{"function":{"name":"b"}}]',
  });
  expect(edit({ drop_params: ['tools[0]'] }).edits).toEqual({ tools: '[{"function":{"name":"b"}}]' });
  expect(edit({ drop_params: ['tools[*].function.missing'] }).edits).toEqual({});
  expect(edit({ drop_params: ['tools[0].function', 'tools[0].x', 'tools'] }).edits).toEqual({ tools: undefined });
  expect(edit({ override_params: { x: { a: 1, b: 2 } }, drop_params: ['x.a'] }).edits).toEqual({ x: '{"b":2}' });
  expect(params.tools[0]?.function.strict).toBe(true);
});

test('a model of the config is reported separately, because it also decides where a call goes', () => {
  expect(edit({ override_params: { model: '@k/big' } })).toEqual({ edits: {}, model: '@k/big' });
  expect(edit({ default_params: { model: 'unused' } })).toEqual({ edits: {}, model: null });
});
