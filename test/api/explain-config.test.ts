/* oxlint-disable unicorn/no-thenable -- the member's name is the interface's */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { postJson } from './scripted-provider.ts';

// What a config would do with a call is said by the code that routes calls; here it is compared with the call itself.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
});
afterAll(() => platform.stop());

type Step = { kind: string; [member: string]: unknown };
type Explained = { config: object | null; steps: Step; text: string[] };

const explain = async (body: object): Promise<Explained> => {
  const response = await postJson(platform, '/configs/explain', body);
  expect(response.status).toBe(200);
  return (await response.json()) as Explained;
};
const small = { provider: '@simulator', override_params: { model: 'sim-small' } };
const large = { provider: '@simulator', override_params: { model: 'sim-large' } };
const byTier = {
  strategy: {
    mode: 'conditional',
    conditions: [
      { query: { 'metadata.tier': { $eq: 'gold' } }, then: 'large' },
      { query: { 'metadata.name': { $regex: '^A' } }, then: 'both' },
    ],
    default: 'small',
  },
  targets: [
    { name: 'small', ...small },
    { name: 'large', ...large, retry: { attempts: 2 } },
    {
      name: 'both',
      strategy: { mode: 'loadbalance' },
      targets: [
        { ...small, weight: 3 },
        { ...large, weight: 1 },
      ],
    },
  ],
};

test('conditions, shares and targets are those that a call goes by', async () => {
  const made = (await (await postJson(platform, '/configs', { name: 'By tier', config: byTier })).json()) as {
    slug: string;
  };
  const gold = await explain({ config: made.slug, metadata: { tier: 'gold' }, body: { model: 'any', messages: [] } });
  expect(gold.config).toMatchObject({ slug: made.slug, version: 1 });
  expect(gold.steps).toMatchObject({
    kind: 'conditional',
    conditions: [{ holds: true }, { holds: false }],
    chosen: 0,
    step: {
      kind: 'target',
      name: 'large',
      provider: 'simulator',
      virtual_key: null,
      model: 'sim-large',
      retry: { attempts: 2 },
    },
  });
  expect(gold.text).toEqual(['Condition 1 matches:', '  Calls simulator for sim-large, with up to 2 retries']);
  const call = await postJson(
    platform,
    '/chat/completions',
    { model: 'any', messages: [{ role: 'user', content: 'Hi' }] },
    { 'x-gateway-config': made.slug, 'x-gateway-metadata': '{"tier":"gold"}' },
  );
  expect(((await call.json()) as { model: string }).model).toBe('sim-large');

  const shared = await explain({ config: made.slug, metadata: { name: 'Ada' } });
  expect(shared.steps).toMatchObject({
    chosen: 1,
    step: { kind: 'loadbalance', options: [{ share: 0.75, step: { model: 'sim-small' } }, { share: 0.25 }] },
  });
  const other = await explain({ config: made.slug, metadata: { tier: 'silver' } });
  expect(other.steps).toMatchObject({ chosen: null, step: { name: 'small' } });
});

test('a target that a call would be refused at says why, and a bad config is refused as for a call', async () => {
  const config = {
    strategy: { mode: 'fallback', on_status_codes: [429] },
    targets: [{ provider: '@nobody' }, { ...small, cache: { mode: 'simple' } }],
  };
  const { steps, text } = await explain({ config, body: { model: 'any' } });
  expect(steps).toMatchObject({
    kind: 'fallback',
    on_status_codes: [429],
    options: [
      { provider: null, problem: { code: 'virtual_key_not_found' } },
      { provider: 'simulator', cache_seconds: 604_800, problem: null },
    ],
  });
  expect(text[0]).toBe('Tries these in order, and continues with the next one after 429:');
  const continued = await explain({
    config: { strategy: { mode: 'fallback', continue_streams: true }, cache_breakpoints: true, targets: [small] },
    endpoint: '/v1/messages',
  });
  expect(continued.steps).toMatchObject({ continue_streams: true, options: [{ cache_breakpoints: true }] });
  expect(continued.text[0]).toContain('also in the middle of a stream:');
  const bad = await postJson(platform, '/configs/explain', {
    config: { strategy: { mode: 'sideways' }, targets: [small] },
  });
  expect(bad.status).toBe(400);
  expect(await bad.json()).toMatchObject({ error: { param: 'config.strategy.mode' } });
  expect((await postJson(platform, '/configs/explain', { config: 'no-such-config' })).status).toBe(400);
  // Without a config: what the caller's own headers say.
  expect((await explain({ body: { model: '@simulator/sim-small' } })).steps).toMatchObject({
    kind: 'target',
    model: 'sim-small',
  });
});
