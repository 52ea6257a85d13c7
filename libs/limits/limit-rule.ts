import type { RateLimit, RateLimitType, UsageLimit, UsageLimitType } from '#libs/contracts/people/limits.ts';
import { divide, larger, one, parseAmount, wholeAmount } from '#libs/kernel/amount.ts';
import { commonModelName, isModelNamed } from '#libs/prices/model-names.ts';
import type { LimitTerms } from './counter.ts';
import { counterId, type CounterName } from './counter-store.ts';
import { toReset } from './period.ts';

/** The properties of a call that limits use. Names are those that people write: the slug before the ID. */
export type CallFacts = {
  workspaceId: string;
  keyId: string | null;
  metadata: Readonly<Record<string, string>> | null;
  /** The ID of a stored credential, and its slug. */
  credentialId: string | null;
  credential: string;
  provider: string;
  model: string | null;
  /** The name of the public model in the call; null for none. */
  publicModel: string | null;
  config: { id: string; slug: string } | null;
  prompt: { id: string; slug: string } | null;
};

/** The calls of its workspace for which a limit is checked at all. */
type Scope = { of: 'workspace' } | { of: 'api_key' | 'credential'; id: string };

/** One budget or rate, prepared for calls. */
export type LimitRule = {
  scope: Scope;
  workspaceId: string;
  limitId: string;
  /** The record that has it, and the noun of that record's events. */
  recordId: string;
  noun: string;
  /** Its name in messages. */
  label: string;
  kind: 'budget' | 'rate';
  measure: UsageLimitType | RateLimitType;
  terms: LimitTerms;
  /** The limit applies to a call that meets all of them. */
  conditions: readonly Condition[];
  groupBy: readonly string[];
  /** The only counter of a limit without groups. */
  counter: CounterName | null;
  /**
   * The counters of other limits, by their values. A name contains a hash, which costs more than the rest of a call's
   * admission.
   */
  names: Map<string, CounterName>;
  /** For a rate per minute: the counter that spreads the calls of batches over the minute. null: they are not spread. */
  pace: LimitRule | null;
};

type Condition = { key: string; value: string };

/** A record with limits, as described by its kind. `makeRecordRules` and `ruleOfPolicy` derive its rules. */
type LimitedRecord = {
  id: string;
  noun: string;
  workspaceId: string;
  label: string;
  createdAtMs: number;
  scope: Scope;
  /** When its budgets were last reset manually. */
  usageResetAtMs?: number;
};

type PolicyTerms = { conditions: readonly Condition[]; group_by: readonly { key: string }[] };

/** The limits of a record such as an API key: each is a policy for the calls of its scope. */
export function makeRecordRules(
  record: LimitedRecord,
  limits: {
    /** A list, or a single limit. */
    usage_limits?: readonly UsageLimit[] | UsageLimit | null | undefined;
    rate_limits?: readonly RateLimit[] | null | undefined;
  },
): LimitRule[] {
  const everyCall: PolicyTerms = { conditions: [], group_by: [] };
  const budgets = [limits.usage_limits ?? []].flat().flatMap((limit) =>
    limit.credit_limit === undefined
      ? []
      : [
          budgetRule(record, `${record.id}/${limit.type}`, {
            ...limit,
            ...everyCall,
            credit_limit: limit.credit_limit,
          }),
        ],
  );
  const rates = (limits.rate_limits ?? []).map((limit) =>
    rateRule(record, `${record.id}/${limit.type}/${limit.unit}`, { ...limit, ...everyCall }),
  );
  return [...budgets, ...rates];
}

/** The rule of a usage-limit policy; `credit_limit` in US cents or tokens, exact. */
export function budgetRule(
  record: LimitedRecord,
  limitId: string,
  limit: Omit<UsageLimit, 'credit_limit'> & PolicyTerms & { credit_limit: number | string },
): LimitRule {
  const max = parseAmount(limit.credit_limit);
  const threshold = limit.alert_threshold ?? null;
  return rule(record, limitId, limit, {
    kind: 'budget',
    measure: limit.type,
    terms: {
      max,
      reset: { ...toReset(limit, record.createdAtMs), sinceMs: record.usageResetAtMs ?? 0 },
      alertAt: threshold === null ? null : divide(max * parseAmount(threshold), 100n * one),
    },
  });
}

/** The rule of a rate-limit policy. */
export function rateRule(record: LimitedRecord, limitId: string, limit: RateLimit & PolicyTerms): LimitRule {
  const rate = { kind: 'rate', measure: limit.type } as const;
  const terms: LimitTerms = { max: wholeAmount(limit.value), reset: { every: limit.unit }, alertAt: null };
  const pace = limit.unit === 'rpm' && limit.value > 0 ? toPace(limit) : null;
  return {
    ...rule(record, limitId, limit, { ...rate, terms }),
    pace: pace && rule(record, `${limitId}/pace`, limit, { ...rate, terms: pace }),
  };
}

/** What a batch can begin at once after a pause: the calls of a second, or one call. */
const paceBurstMs = 1_000;
/** The part of a rate that batches use. The rest is left to live calls, which are refused when the minute is used up. */
const pacedPart = 0.98;

function toPace({ type, value }: RateLimit): LimitTerms {
  const perMs = (value * pacedPart) / 60_000;
  const burst = parseAmount(perMs * paceBurstMs);
  const max = type === 'requests' ? larger(burst, one) : burst;
  return { max, reset: { every: 'pace', perMs }, alertAt: null };
}

function rule(
  { id: recordId, noun, workspaceId, label, scope }: LimitedRecord,
  limitId: string,
  { conditions, group_by }: PolicyTerms,
  { kind, measure, terms }: Pick<LimitRule, 'kind' | 'measure' | 'terms'>,
): LimitRule {
  const groupBy = group_by.map(({ key }) => key);
  const counter = groupBy.length > 0 ? null : nameOf({ workspaceId, limitId, kind }, '*');
  return {
    scope,
    workspaceId,
    limitId,
    recordId,
    noun,
    label,
    kind,
    measure,
    terms,
    conditions,
    groupBy,
    counter,
    names: new Map(),
    pace: null,
  };
}

const nameOf = (
  { workspaceId, limitId, kind }: Pick<LimitRule, 'workspaceId' | 'limitId' | 'kind'>,
  valueKey: string,
): CounterName => ({ id: counterId(limitId, valueKey), workspaceId, limitId, valueKey, kind });

/** Whether a limit of its workspace applies to a call. `*` matches any value, but not a missing one. */
export function matches({ conditions }: Pick<LimitRule, 'conditions'>, call: CallFacts): boolean {
  for (const { key, value } of conditions) {
    const known = valuesOf(call, key);
    if (known.length === 0) return false;
    if (value === '*' || known.includes(value)) continue;
    if (key !== 'model' || call.model === null || !isModelNamed(call.model, value)) return false;
  }
  return true;
}

/**
 * The counter of a call: one for each combination of the values that the limit groups by. Calls that lack a value share
 * one, so that leaving out metadata does not circumvent a limit.
 */
export function findCounter(limit: LimitRule, call: CallFacts): CounterName {
  if (limit.counter !== null) return limit.counter;
  const parts = limit.groupBy.map((key) => `${key}=${encodeURIComponent(groupValue(call, key))}`);
  const valueKey = parts.join('&');
  const known = limit.names.get(valueKey);
  if (known !== undefined) return known;
  const name = nameOf(limit, valueKey);
  if (limit.names.size >= namesMax) limit.names.clear();
  limit.names.set(valueKey, name);
  return name;
}

function groupValue(call: CallFacts, key: string): string {
  const value = valuesOf(call, key)[0] ?? '';
  return key === 'model' ? commonModelName(value) : value;
}

const namesMax = 10_000;

const none: readonly string[] = [];

/**
 * The values of a call for a key of conditions and of `group_by`: any of these texts matches it, and the first is
 * shown.
 */
function valuesOf(call: CallFacts, key: string): readonly string[] {
  switch (key) {
    case 'api_key':
      return listed(call.keyId);
    case 'workspace_id':
      return [call.workspaceId];
    case 'virtual_key':
      return call.credentialId === null ? none : [call.credential, call.credentialId];
    case 'provider':
      return [call.provider];
    case 'model':
      return [...listed(call.model), ...listed(call.publicModel)];
    case 'config':
      return call.config === null ? none : [call.config.slug, call.config.id];
    case 'prompt':
      return call.prompt === null ? none : [call.prompt.slug, call.prompt.id];
    default:
      return key.startsWith(metadataPrefix) ? listed(call.metadata?.[key.slice(metadataPrefix.length)] ?? null) : none;
  }
}

const metadataPrefix = 'metadata.';
const listed = (value: string | null): readonly string[] => (value === null ? none : [value]);
