import { expect, test } from 'vitest';
import { parseAmount } from '#libs/kernel/amount.ts';
import { budgetRule, findCounter, matches, makeRecordRules, type CallFacts } from './limit-rule.ts';
import { periodAt, toReset } from './period.ts';

const call: CallFacts = {
  workspaceId: 'ws_1',
  keyId: 'key_1',
  metadata: { team: 'red', user: 'a&b' },
  credentialId: 'vk_1',
  credential: 'main',
  provider: 'openai',
  model: 'gpt-5',
  publicModel: null,
  config: { id: 'config_1', slug: 'fast' },
  prompt: null,
};
const record = {
  id: 'policy_1',
  noun: 'usage_limit_policy',
  workspaceId: 'ws_1',
  label: 'it',
  createdAtMs: Date.UTC(2026, 0, 15, 13),
  scope: { of: 'workspace' as const },
};
const budget = (conditions: [string, string][], groupBy: string[] = []) =>
  budgetRule(record, 'policy_1', {
    type: 'cost',
    credit_limit: '10.5',
    alert_threshold: 80,
    conditions: conditions.map(([key, value]) => ({ key, value })),
    group_by: groupBy.map((key) => ({ key })),
  });

test('a limit by model applies to the public name as well, and counts by the model of the provider', () => {
  const limit = budget([['model', 'cheap']], ['model']);
  expect(matches(limit, { ...call, publicModel: 'cheap' })).toBe(true);
  expect(matches(limit, { ...call, publicModel: 'other' })).toBe(false);
  expect(findCounter(limit, { ...call, publicModel: 'cheap' }).valueKey).toBe('model=gpt-5');
});

test('a limit by model applies to every spelling of that model, and counts them together', () => {
  const spellings = ['gpt-5', 'GPT-5', 'gpt-5-2026-01-02', 'openai/gpt-5'].map((model) => ({ ...call, model }));
  const fineTuned = { ...call, model: 'ft:gpt-5:acme::id' };
  const limit = budget([['model', 'gpt-5']], ['model']);
  for (const each of [...spellings, fineTuned]) expect(matches(limit, each)).toBe(true);
  expect(matches(limit, { ...call, model: 'gpt-5-mini' })).toBe(false);
  expect(new Set(spellings.map((each) => findCounter(limit, each).valueKey))).toEqual(new Set(['model=gpt-5']));
});

test.each<[[string, string][], boolean]>([
  [[], true],
  [[['api_key', 'key_1']], true],
  [[['api_key', 'key_2']], false],
  [[['virtual_key', 'main']], true],
  [[['virtual_key', 'vk_1']], true],
  [
    [
      ['config', 'config_1'],
      ['model', 'gpt-5'],
    ],
    true,
  ],
  [
    [
      ['config', 'config_1'],
      ['model', 'gpt-4'],
    ],
    false,
  ],
  [[['metadata.team', 'red']], true],
  [[['metadata.team', '*']], true],
  [[['metadata.country', '*']], false],
  [[['prompt', '*']], false],
  [
    [
      ['workspace_id', 'ws_1'],
      ['provider', 'openai'],
    ],
    true,
  ],
])('the conditions %j are met: %s', (conditions, expected) => {
  expect(matches(budget(conditions), call)).toBe(expected);
});

test('a call counts by the values that a limit groups by, and those without a value share a counter', () => {
  const grouped = budget([], ['metadata.user', 'virtual_key']);
  expect(findCounter(grouped, call)).toMatchObject({ valueKey: 'metadata.user=a%26b&virtual_key=main' });
  const without = [null, {}].map((metadata) => findCounter(grouped, { ...call, metadata }));
  expect(without.map(({ valueKey }) => valueKey)).toEqual(Array(2).fill('metadata.user=&virtual_key=main'));
  expect(findCounter(budget([]), call)).toMatchObject({ valueKey: '*' });
});

test('an alert is due at its part of the limit, and each limit of a record has a counter of its own', () => {
  expect(budget([]).terms.alertAt).toBe(parseAmount('8.4'));
  const rules = makeRecordRules(record, {
    usage_limits: [{ type: 'tokens', credit_limit: 5 }, { type: 'cost' }],
    rate_limits: [{ type: 'requests', unit: 'rpm', value: 3 }],
  });
  expect(rules.map(({ limitId, kind, measure }) => [limitId, kind, measure])).toEqual([
    ['policy_1/tokens', 'budget', 'tokens'],
    ['policy_1/requests/rpm', 'rate', 'requests'],
  ]);
});

test.each([
  [{ periodic_reset: 'monthly' }, '2026-02-28T23:59:59.999Z', '2026-02-01T00:00:00.000Z', '2026-03-01T00:00:00.000Z'],
  [{ periodic_reset: 'weekly' }, '2026-11-22T23:00:00.000Z', '2026-11-16T00:00:00.000Z', '2026-11-23T00:00:00.000Z'],
  [{ periodic_reset_days: 10 }, '2026-01-30T00:00:00.000Z', '2026-01-25T00:00:00.000Z', '2026-02-04T00:00:00.000Z'],
] as const)('the period of %j at %s begins at %s and ends at %s', (limit, now, start, end) => {
  const { startMs, endMs } = periodAt(toReset(limit, record.createdAtMs), Date.parse(now));
  expect([startMs, endMs].map((ms) => new Date(ms).toISOString())).toEqual([start, end]);
});

test('a budget without a reset has one period for good, and a rate one for each of its windows', () => {
  expect(periodAt(toReset({}, 0), 1e12)).toEqual({ startMs: 0, endMs: Number.POSITIVE_INFINITY });
  expect(periodAt({ every: 'rps' }, 12_345)).toEqual({ startMs: 12_000, endMs: 13_000 });
  expect(new Date(periodAt({ every: 'rpw' }, Date.UTC(2026, 10, 22)).startMs).getUTCDay()).toBe(1);
});
