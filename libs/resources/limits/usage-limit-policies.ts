import { Big } from 'big.js';
import { z } from 'zod';
import type { UsageLimit } from '#libs/contracts/people/limits.ts';
import { optionalInteger } from '#libs/contracts/lists.ts';
import { PolicyEntityObject, usageLimitPolicyFields, UsageLimitPolicyObject } from '#libs/contracts/people/policies.ts';
import { text } from '#libs/contracts/scalars.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { withInput } from '#libs/http/route.ts';
import { amountToNumber } from '#libs/kernel/amount.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { listCounters, resetCounter, type CounterQuery, type CounterUse } from '#libs/limits/counter-store.ts';
import { budgetRule, type LimitRule } from '#libs/limits/limit-rule.ts';
import { periodAt } from '#libs/limits/period.ts';
import { defineKind, type KindDeps } from '#libs/resources/define-kind.ts';
import { newPolicy, policyView, type PolicyData } from './policy-record.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { pageOf } from '#libs/records/lists/list-page.ts';
import { archivedText, policyErrors } from '#libs/resources/kind-texts.ts';

/** `credit_limit` is exact: a decimal number as text. */
type UsageLimitPolicyData = PolicyData &
  Pick<UsageLimit, 'type' | 'alert_threshold' | 'periodic_reset' | 'periodic_reset_days'> & {
    credit_limit: string;
    /** When one of its counters was last reset manually; ISO 8601. */
    last_reset_at?: string;
  };

type Row = ResourceRow<UsageLimitPolicyData>;

/** The maximum number of counters that `include_usage` shows; the list of entities has all of them. */
const usageMapMax = 1_000;

const usageLimitPolicyNoun = 'usage_limit_policy';

/** A budget for the calls of a workspace that meet its conditions. Its counters are not stored as events (libs/limits). */
export const usageLimitPolicyKind = defineKind<typeof usageLimitPolicyFields, UsageLimitPolicyData, null>({
  noun: usageLimitPolicyNoun,
  idPrefix: 'policy_',
  area: 'policies',
  texts: {
    create: {
      description:
        'A budget in US cents or tokens for calls that match the conditions, with a separate counter for each value ' +
        'of `group_by`. It is checked before a call and charged after it.',
      example: {
        name: 'Monthly budget per team',
        type: 'cost',
        credit_limit: 10_000,
        periodic_reset: 'monthly',
        conditions: [{ key: 'metadata.team', value: '*' }],
        group_by: [{ key: 'metadata.team' }],
      },
      errors: policyErrors,
    },
    update: {
      description: 'Counters keep their values. `reset_usage_for_value` sets one counter to 0.',
      example: { credit_limit: 20_000 },
      errors: { policy_entity_not_found: 'the policy has no counter for `reset_usage_for_value`' },
    },
    delete: { description: archivedText },
  },
  path: '/v1/policies/usage-limits',
  names: {
    one: 'usage-limit policy',
    many: 'usage-limit policies',
    tag: 'Policies',
    about: 'Budgets and rates for calls with common properties.',
  },
  fields: usageLimitPolicyFields,
  applied: { refersTo: { virtual_key: null, provider: null, config: null, prompt: null } },
  changes: {
    immutable: ['conditions', 'group_by', 'type', 'organisation_id'],
    fields: { reset_usage_for_value: text({ min: 1, max: 4_000 }).optional() },
  },
  removal: { verb: 'archived', archives: true },
  filters: {
    type: { schema: usageLimitPolicyFields.type, field: 'type', match: 'equal' },
  },

  async check(input, context) {
    const { reset_usage_for_value: value, ...given } = input as typeof input & { reset_usage_for_value?: string };
    const { unit, row } = context;
    const { credit_limit: credit, ...rest } = await newPolicy(usageLimitPolicyNoun, given, context);
    const data: Partial<UsageLimitPolicyData> = { ...(rest as Partial<UsageLimitPolicyData>) };
    if (credit !== undefined) data.credit_limit = new Big(credit as number).toFixed();
    const { periodic_reset: reset, periodic_reset_days: days } = { ...row?.data, ...data };
    if (reset != null && days != null) {
      const message =
        "Invalid 'periodic_reset': it cannot be combined with 'periodic_reset_days'. Set the other one to null.";
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'periodic_reset' });
    }
    if (value !== undefined && row !== null) {
      await requireReset(unit.tx, row.id, value, 'reset_usage_for_value');
      data.last_reset_at = unit.now.toISOString();
    }
    return { data };
  },

  history: {
    events: {
      usage_reset: (data, { recordedAt }) => ({ ...data, last_reset_at: recordedAt.toISOString() }),
    },
  },

  view(row, nowMs) {
    const { data } = row;
    const { reset } = ruleOf(row).terms;
    const { startMs, endMs } = periodAt(reset, nowMs);
    const periodic = startMs > row.created_at.getTime() ? new Date(startMs).toISOString() : null;
    const byHand = data.last_reset_at ?? null;
    return {
      ...policyView(row),
      type: data.type,
      credit_limit: Number(data.credit_limit),
      alert_threshold: data.alert_threshold ?? null,
      periodic_reset: data.periodic_reset ?? null,
      periodic_reset_days: data.periodic_reset_days ?? null,
      next_usage_reset_at: endMs === Number.POSITIVE_INFINITY ? null : new Date(endMs).toISOString(),
      last_reset_at: byHand !== null && (periodic === null || byHand > periodic) ? byHand : periodic,
    };
  },
  viewSchema: UsageLimitPolicyObject,

  details: {
    query: { include_usage: z.enum(['true', 'false']).optional() },
    async read(row, deps, { include_usage: includes }) {
      if (includes !== 'true') return {};
      const { counters } = await countersOf(deps, row, { skip: 0, limit: usageMapMax });
      return {
        value_key_usage_map: Object.fromEntries(counters.map(({ valueKey, used }) => [valueKey, amountToNumber(used)])),
      };
    },
  },

  cached: { toEntry: () => null, limits: (row) => [ruleOf(row)] },

  routes: (store, deps, kit) => [
    {
      method: 'GET',
      path: '/v1/policies/usage-limits/:id/entities',
      operationId: 'listUsageLimitPolicyEntities',
      summary: 'List the counters of a usage-limit policy',
      description:
        'Returns one counter for each value of `group_by`, with its usage in the current period and the number of calls without a price.',
      errors: { usage_limit_policy_not_found: 'no policy with this ID is visible to the key' },
      ...kit.read,
      responses: {
        200: {
          description: 'A page of counters, newest first.',
          schema: z.object({
            object: z.literal('list'),
            total: z.int(),
            data: z.array(PolicyEntityObject),
            has_more: z.boolean(),
          }),
        },
      },
      ...withInput(
        {
          params: z.object({ id: z.string() }),
          query: z.object({
            workspace_id: z.string().max(200).optional(),
            status: z.enum(['active', 'exhausted']).optional(),
            search: z.string().max(500).optional(),
            page_size: optionalInteger({ min: 1, max: 100 }),
            current_page: optionalInteger({ min: 0, max: 1_000_000 }),
          }),
        },
        async ({ query }, request, response) => {
          const row = await store.get(await kit.recordOf(request, query));
          const { status, search } = query;
          const { skip, limit } = pageOf(query);
          const { counters, total } = await countersOf(deps, row, { status, search, skip, limit });
          response.json({
            object: 'list',
            total,
            data: counters.map(toEntity),
            has_more: skip + counters.length < total,
          });
        },
      ),
    },
    {
      method: 'PUT',
      path: '/v1/policies/usage-limits/:id/entities/:entityId/reset',
      operationId: 'resetUsageLimitPolicyEntity',
      summary: 'Set one counter of a usage-limit policy to 0',
      description: 'Takes effect in all processes within about a second.',
      errors: {
        usage_limit_policy_not_found: 'no policy with this ID is visible to the key',
        policy_entity_not_found: 'the policy has no such counter',
      },
      ...kit.write,
      responses: { 200: { description: 'The policy.', schema: UsageLimitPolicyObject } },
      ...withInput(
        {
          params: z.object({ id: z.string(), entityId: z.string() }),
          query: z.object({ workspace_id: z.string().max(200).optional() }),
        },
        async ({ params, query }, request, response) => {
          const name = await kit.recordOf(request, query);
          const row = await store.change(name, toEventMetadata(request), async (unit, { id }) => {
            const valueKey = await requireReset(unit.tx, id, params.entityId, 'entityId');
            const data = { entity_id: params.entityId, value_key: valueKey };
            return [{ type: `${usageLimitPolicyNoun}.usage_reset`, data }];
          });
          response.json((await kit.viewsOf([row]))[0]);
        },
      ),
    },
  ],
});

function ruleOf({ id, workspace_id: workspaceId, data, created_at: createdAt }: Row): LimitRule {
  const label = `the usage-limit policy '${data.name ?? id}'`;
  const createdAtMs = createdAt.getTime();
  const record = {
    id,
    noun: usageLimitPolicyNoun,
    workspaceId,
    label,
    createdAtMs,
    scope: { of: 'workspace' as const },
  };
  return budgetRule(record, id, data);
}

const countersOf = (
  { db, clock }: KindDeps,
  row: Row,
  query: Omit<CounterQuery, 'limitId'>,
): Promise<{ counters: CounterUse[]; total: number }> =>
  listCounters(db, ruleOf(row).terms, { limitId: row.id, ...query }, clock.now());

const toEntity = ({
  id,
  valueKey,
  used,
  unconfirmed,
  unpriced,
  max,
  resetAt,
}: CounterUse): z.output<typeof PolicyEntityObject> => ({
  id,
  object: 'policy-entity',
  value_key: valueKey,
  current_usage: amountToNumber(used),
  unconfirmed_usage: amountToNumber(unconfirmed),
  unpriced_calls: unpriced,
  status: used >= max ? 'exhausted' : 'active',
  last_reset_at: resetAt?.toISOString() ?? null,
});

async function requireReset(
  db: KindDeps['db'],
  limitId: string,
  name: string,
  param: 'entityId' | 'reset_usage_for_value',
): Promise<string> {
  const valueKey = await resetCounter(db, { limitId, name });
  if (valueKey !== null) return valueKey;
  const message = `This policy has no counter for '${name.slice(0, 200)}'. Its entities list the existing counters.`;
  throw new GatewayError('not_found', 'policy_entity_not_found', message, { param });
}
