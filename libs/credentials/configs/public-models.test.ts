import { describe, expect, test } from 'vitest';
import { plainPlan } from '#libs/calls/plan/plain-plan.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { compileConfig } from '#libs/calls/plan/compile-config.ts';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { toModelConfig, type PublicModelRouting } from '#libs/contracts/configs/public-models.ts';
import { createOwnPrice } from '#libs/prices/price-table.ts';
import { createPlanCache } from './plan-cache.ts';
import {
  groupModels,
  matchModel,
  usePublicModels,
  type PublicModel,
  type PublicModelRecords,
} from './public-models.ts';
import { compileStoredConfig } from './read-config.ts';

type Settings = Partial<Pick<PublicModel, 'allowed' | 'workspaceId'>> & { price?: string; routing?: object };

function makeModel(name: string, targets: object[], settings: Settings = {}): PublicModel {
  const { allowed = null, workspaceId = 'ws_1', price, routing } = settings;
  const document = { targets, ...routing } as PublicModelRouting;
  const own = price === undefined ? null : createOwnPrice({ input: price });
  return {
    slug: name,
    workspaceId,
    name,
    displayName: name,
    createdAtMs: 0,
    allowed,
    text: JSON.stringify(document),
    plan: (called, matched) => {
      const config = toModelConfig(document, called, matched) as Record<string, unknown>;
      return compileStoredConfig(config, { name: called, price: own });
    },
  };
}

const organisation = 'org_default';
function makeRecords(models: readonly PublicModel[]): PublicModelRecords {
  const groups = groupModels(models);
  const owners = [groups.get('ws_1'), groups.get(organisation)].filter((owner) => owner !== undefined);
  return { findPublicModels: () => ({ owners, version: models }), refuseUnreadableModels: () => {} };
}

const anyone = { workspaceId: 'ws_1', keyId: 'key_1', role: null };
const plans = createPlanCache();
const use = (models: readonly PublicModel[], model: string | null, plan: Plan = plainPlan, caller = anyone): Plan =>
  usePublicModels({ snapshot: makeRecords(models), plans }, plan, { caller, model });
const summary = ({ leaves }: Plan): string[] =>
  leaves.map(
    ({ credentials, overrides }) => `${credentials.virtualKey}:${JSON.parse(overrides.get('model') ?? 'null')}`,
  );
const config = (document: object): Plan => compileConfig(ConfigInput.parse(document));

describe('a name refers to', () => {
  const models = [
    makeModel('gpt', [{ provider: '@exact' }]),
    makeModel('*', [{ provider: '@all' }]),
    makeModel('openai/*', [{ provider: '@openai' }]),
    makeModel('openai/*-mini', [{ provider: '@mini' }]),
    makeModel('openai/gpt-4*', [{ provider: '@shared' }], { workspaceId: organisation }),
    makeModel('gpt', [{ provider: '@shared' }], { workspaceId: organisation }),
  ];
  const { owners } = makeRecords(models).findPublicModels('ws_1');
  test.each([
    ['gpt', 'gpt', null],
    ['gpt-5', '*', 'gpt-5'],
    ['openai/gpt-5', 'openai/*', 'gpt-5'],
    ['openai/gpt-5-mini', 'openai/*-mini', 'gpt-5'],
    ['openai/gpt-4o', 'openai/gpt-4*', 'o'],
    ['openai/-mini', 'openai/*', '-mini'],
  ])('%s: the model %s', (name, found, matched) => {
    expect(matchModel(owners, name, anyone)).toMatchObject({ model: { name: found }, matched });
  });

  test('no wildcard, if the exact model does not permit the caller', () => {
    const closed = makeModel('gpt-5', [{ provider: '@exact' }], { allowed: { keys: ['key_2'] } });
    const { owners: all } = makeRecords([...models, closed]).findPublicModels('ws_1');
    expect(matchModel(all, 'gpt-5', anyone)).toBeNull();
    expect(matchModel(all, 'gpt-5', { ...anyone, keyId: 'key_2' })).toMatchObject({ model: { name: 'gpt-5' } });
  });

  test('a model only if each of its lists contains the caller', () => {
    const limited = makeModel('x', [{ provider: '@x' }], { allowed: { workspaces: ['ws_1'], roles: ['admin'] } });
    const { owners: all } = makeRecords([limited]).findPublicModels('ws_1');
    expect(matchModel(all, 'x', anyone)).toBeNull();
    expect(matchModel(all, 'x', { ...anyone, role: 'admin' })).not.toBeNull();
    expect(matchModel(all, 'x', { ...anyone, workspaceId: 'ws_2', role: 'admin' })).toBeNull();
  });
});

describe('the plan of a public model', () => {
  test('is that of a config with its targets in order, and the matched part in their models', () => {
    const wild = makeModel('openai/*', [{ provider: '@main' }, { provider: '@spare', model: 'azure-*' }]);
    const plan = use([wild], 'openai/gpt-4o');
    expect(plan.root.kind).toBe('fallback');
    expect(summary(plan)).toEqual(['main:openai/gpt-4o', 'spare:azure-gpt-4o']);
    expect(plan.leaves[0].publicModel).toEqual({ name: 'openai/gpt-4o', price: null });
  });

  test('is the same object for each call with the name, also if its targets name other models', () => {
    const models = [makeModel('a', [{ model: 'b' }]), makeModel('b', [{ provider: '@main', model: 'real' }])];
    const records = { snapshot: makeRecords(models), plans };
    const first = usePublicModels(records, plainPlan, { caller: anyone, model: 'a' });
    expect(summary(first)).toEqual(['main:real']);
    expect(usePublicModels(records, plainPlan, { caller: anyone, model: 'a' })).toBe(first);
  });

  test('has the settings of an outer target where the inner one has none, and both of their guardrails', () => {
    const inner = makeModel('inner', [{ provider: '@main', retry: { attempts: 1 }, default_params: { top_p: 1 } }]);
    const outer = config({
      retry: { attempts: 5 },
      cache: 'simple',
      strategy: { mode: 'fallback' },
      override_params: { user: 'x' },
      default_params: { top_p: 0 },
      targets: [
        { override_params: { model: 'inner' }, input_guardrails: ['outer-check'] },
        { provider: '@other', name: 'second' },
      ],
    });
    const [first, second] = use([inner], null, outer).leaves;
    expect(first).toMatchObject({ path: 'config.targets[0].targets[0]', retry: { attempts: 1 } });
    expect(first.cache).not.toBeNull();
    expect(Object.fromEntries(first.overrides)).toEqual({ model: '"inner"', user: '"x"' });
    expect(first.defaults.get('top_p')).toBe('1');
    expect(first.inputGuardrails).toEqual([{ stored: 'outer-check' }]);
    expect(second?.name).toBe('second');
  });

  test('has the price of the outermost model that has one, and the name of the call', () => {
    const models = [
      makeModel('a', [{ model: 'b' }]),
      makeModel('b', [{ model: 'c' }], { price: '2' }),
      makeModel('c', [{ provider: '@main' }], { price: '3' }),
    ];
    const [leaf] = use(models, 'a').leaves;
    expect(leaf.publicModel).toEqual({ name: 'a', price: createOwnPrice({ input: '2' }) });
  });

  test('is refused if models name each other, or have too many targets together', () => {
    const ring = [makeModel('a', [{ model: 'b' }]), makeModel('b', [{ model: 'a' }])];
    expect(() => use(ring, 'a')).toThrow(expect.objectContaining({ code: 'model_cycle' }));
    const ten = Array.from({ length: 10 }, () => ({ provider: '@main' }));
    const wide = [
      makeModel('ten', ten),
      makeModel(
        'many',
        Array.from({ length: 6 }, () => ({ model: 'ten' })),
      ),
    ];
    expect(() => use(wide, 'many')).toThrow(expect.objectContaining({ code: 'model_too_large' }));
    const chain = Array.from({ length: 8 }, (_, index) => makeModel(`m${index}`, [{ model: `m${index + 1}` }]));
    expect(() => use(chain, 'm0')).toThrow(expect.objectContaining({ code: 'model_too_large' }));
  });

  test('leaves targets with a destination as they are, and a config without others is the same object', () => {
    const plan = config({ provider: '@main' });
    expect(use([makeModel('gpt', [{ provider: '@other' }])], 'gpt', plan)).toBe(plan);
    const prompt = config({ prompt_id: 'greeting' });
    expect(use([makeModel('gpt', [{ provider: '@other' }])], 'gpt', prompt)).toBe(prompt);
  });

  test('is cached for each caller that all of its models permit, and hidden from others', () => {
    const closed = makeModel('closed', [{ provider: '@main' }], { allowed: { keys: ['key_2'] } });
    const models = [closed, makeModel('open', [{ model: 'closed' }, { provider: '@main', model: 'real' }])];
    const records = { snapshot: makeRecords(models), plans };
    const asked = (keyId: string) =>
      summary(usePublicModels(records, plainPlan, { caller: { ...anyone, keyId }, model: 'open' }));
    expect(asked('key_2')).toEqual(['main:closed', 'main:real']);
    expect(asked('key_1')).toEqual(['null:closed', 'main:real']);
    expect(asked('key_2')).toEqual(['main:closed', 'main:real']);
  });
});
