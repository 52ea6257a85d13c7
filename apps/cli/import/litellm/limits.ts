import { findProvider } from '#libs/providers/registry.ts';
import { parseLiteLlmModel } from '#libs/providers/litellm-names.ts';
import { writeSpec } from '../../records/record-files.ts';
import type { RecordDocument } from './record-document.ts';
import { lookUp, type SourceNode } from './source-node.ts';

type Conditions = readonly { key: string; value: string }[];
type Reset = { periodic_reset?: 'monthly' | 'weekly'; periodic_reset_days?: number };

const resetDaysMax = 365;
const dollarsMax = 1_000_000_000;
/** Leaves room for the rest of a policy's name, which has at most 255 characters. */
const placeLengthMax = 220;

/** The budgets and rates of an import, as policies. Limits of the same calls are one policy, with the highest value. */
export class Limits {
  readonly #policies = new Map<string, RecordDocument>();

  documents(): RecordDocument[] {
    return [...this.#policies.values()];
  }

  /** A rate of `value` requests or tokens per minute. Returns the name of its policy. */
  addRate(
    name: string,
    type: 'requests' | 'tokens',
    value: number,
    conditions: Conditions,
    groupBy: readonly string[] = [],
  ): string {
    const unit = 'rpm';
    const spec = {
      type,
      unit,
      value: Math.min(Math.ceil(value), Number.MAX_SAFE_INTEGER),
      conditions,
      group_by: groupBy.map((key) => ({ key })),
    };
    return this.#add('rate_limit_policy', name, spec, 'value');
  }

  /** A budget of US dollars. Returns the name of its policy. */
  addBudget(
    name: string,
    dollars: number,
    reset: Reset,
    conditions: Conditions,
    groupBy: readonly string[] = [],
  ): string {
    // More than four decimals of a cent are not stored.
    const credit_limit = Math.round(dollars * 1_000_000) / 10_000;
    const spec = { type: 'cost', credit_limit, ...reset, conditions, group_by: groupBy.map((key) => ({ key })) };
    return this.#add('usage_limit_policy', name, spec, 'credit_limit');
  }

  #add(kind: string, name: string, spec: Record<string, unknown>, amount: string): string {
    const known = this.#policies.get(`${kind}/${name}`);
    const before = Number(known?.spec[amount] ?? 0);
    if (known === undefined || Number(spec[amount]) > before) {
      this.#policies.set(`${kind}/${name}`, { kind, name, spec: writeSpec(spec) });
    }
    return name;
  }
}

/** The limits of an entry: its rates and its budget, for calls of its model with its virtual key. */
export function readDeploymentLimits(
  { virtualKey, model, rpm, tpm }: { virtualKey: string; model: string; rpm: number | null; tpm: number | null },
  find: (param: string) => SourceNode,
  limits: Limits,
): void {
  const isWildcard = model.includes('*');
  const conditions = [
    { key: 'virtual_key', value: virtualKey },
    ...(isWildcard ? [] : [{ key: 'model', value: model }]),
  ];
  const place = isWildcard ? virtualKey : `${virtualKey}/${model}`.slice(0, placeLengthMax);
  const all = isWildcard ? 'all calls with its virtual key' : 'all calls of this model with its virtual key';
  for (const [name, type, value] of [
    ['rpm', 'requests', rpm],
    ['tpm', 'tokens', tpm],
  ] as const) {
    if (value === null) continue;
    const policy = limits.addRate(`${place} ${type} per minute`, type, value, conditions);
    find(name).changed(
      `The rate-limit policy '${policy}' counts ${all}. Without a weight, it is also the share of the target.`,
    );
  }
  const budget = find('max_budget');
  const dollars = readDollars(budget);
  const reset = dollars === null ? null : readReset(find('budget_duration'), budget);
  if (dollars === null || reset === null) return;
  const policy = limits.addBudget(`${place} budget`, dollars, reset, conditions);
  budget.changed(`The usage-limit policy '${policy}' counts ${all}. ${overBudget}`);
}

/** What happens to calls that a budget does not admit. LiteLLM counts a call without a price as 0. */
export const overBudget = 'Calls above it, and calls without a known price, get 412.';

/** A budget in US dollars; null if there is none. */
export function readDollars(node: SourceNode): number | null {
  const dollars = node.isGiven ? node.number() : null;
  if (dollars === null || dollars <= dollarsMax) return dollars;
  node.unsupported(`A budget is at most ${dollarsMax} dollars.`);
  return null;
}

const unitSeconds: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };

/**
 * A duration such as `30d` as the reset of a budget; null if budgets have no such reset. LiteLLM resets `7d` on Mondays and
 * `30d` on the first of the month (docs.litellm.ai/docs/proxy/budget_reset_and_tz), as Sluice resets weeks and months.
 */
export function readReset(node: SourceNode, budget: SourceNode): Reset | null {
  if (!node.isGiven) return {};
  const text = node.text();
  const [, count = '', unit = ''] = /^(\d{1,9})\s*(mo|[smhdw])$/.exec(text ?? '') ?? [];
  const days = (Number(count) * (lookUp(unitSeconds, unit) ?? 0)) / 86_400;
  if (unit === 'mo' && Number(count) === 1) return (node.same(), { periodic_reset: 'monthly' });
  if (days === 30) return (node.same('On the first of the month, as in LiteLLM.'), { periodic_reset: 'monthly' });
  if (days === 7) return (node.same('On Mondays, as in LiteLLM.'), { periodic_reset: 'weekly' });
  const whole = unit === 'mo' ? Number(count) * 30 : days;
  if (Number.isInteger(whole) && whole >= 1 && whole <= resetDaysMax) {
    node.translated(unit === 'mo' ? `Every ${whole} days.` : null);
    return { periodic_reset_days: whole };
  }
  node.unsupported(`A budget resets after 1 to ${resetDaysMax} whole days, on Mondays, or on the first of a month.`);
  budget.unsupported('Its period has no counterpart. Create a usage-limit policy or a rate-limit policy for it.');
  return null;
}

/** Budgets of providers in `router_settings.provider_budget_config`. */
export function readProviderBudgets(config: SourceNode, limits: Limits): void {
  for (const node of config.members()) {
    const parsed = parseLiteLlmModel(`${node.name}/any`, { namedProvider: null, hasAddress: false });
    const provider = parsed === null ? undefined : findProvider(parsed.provider);
    if (provider === undefined) {
      node.unsupported('Sluice does not have this provider.');
      continue;
    }
    const [limit, period] = [
      ['budget_limit', 'max_budget'],
      ['time_period', 'budget_duration'],
    ].map(([first = '', second = '']) => (node.member(first).isGiven ? node.member(first) : node.member(second))) as [
      SourceNode,
      SourceNode,
    ];
    const dollars = readDollars(limit);
    const reset = dollars === null ? null : readReset(period, limit);
    if (dollars === null || reset === null) continue;
    const policy = limits.addBudget(`${provider.id} budget`, dollars, reset, [{ key: 'provider', value: provider.id }]);
    limit.changed(`The usage-limit policy '${policy}'. ${overBudget}`);
  }
}
