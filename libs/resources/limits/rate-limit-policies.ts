import type { RateLimit } from '#libs/contracts/people/limits.ts';
import { rateLimitPolicyFields, RateLimitPolicyObject } from '#libs/contracts/people/policies.ts';
import { rateRule } from '#libs/limits/limit-rule.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import { newPolicy, policyView, type PolicyData } from './policy-record.ts';
import { archivedText, policyErrors } from '#libs/resources/kind-texts.ts';

type RateLimitPolicyData = PolicyData & RateLimit;

const noun = 'rate_limit_policy';

/** A rate limit for the calls of a workspace that meet its conditions. */
export const rateLimitPolicyKind = defineKind<typeof rateLimitPolicyFields, RateLimitPolicyData, null>({
  noun,
  idPrefix: 'policy_',
  area: 'policies',
  texts: {
    create: {
      description: 'Limits the calls or tokens in a minute, hour or day for calls that match the conditions.',
      example: {
        name: 'Each key',
        type: 'requests',
        unit: 'rpm',
        value: 600,
        conditions: [],
        group_by: [{ key: 'api_key' }],
      },
      errors: policyErrors,
    },
    update: { description: 'Every process applies the change within about a second.', example: { value: 1_200 } },
    delete: { description: archivedText },
  },
  path: '/v1/policies/rate-limits',
  names: { one: 'rate-limit policy', many: 'rate-limit policies', tag: 'Policies' },
  fields: rateLimitPolicyFields,
  applied: { refersTo: { virtual_key: null, provider: null, config: null, prompt: null } },
  changes: { immutable: ['conditions', 'group_by', 'type', 'organisation_id'] },
  removal: { verb: 'archived', archives: true },
  filters: {
    type: { schema: rateLimitPolicyFields.type, field: 'type', match: 'equal' },
    unit: { schema: rateLimitPolicyFields.unit, field: 'unit', match: 'equal' },
  },

  async check(input, context) {
    return { data: await newPolicy(noun, input, context) };
  },

  view: (row) => ({
    ...policyView(row),
    type: row.data.type,
    unit: row.data.unit,
    value: row.data.value,
  }),
  viewSchema: RateLimitPolicyObject,

  cached: {
    toEntry: () => null,
    limits({ id, workspace_id: workspaceId, data, created_at: createdAt }) {
      const label = `the rate-limit policy '${data.name ?? id}'`;
      const createdAtMs = createdAt.getTime();
      return [rateRule({ id, noun, workspaceId, label, createdAtMs, scope: { of: 'workspace' } }, id, data)];
    },
  },
});
