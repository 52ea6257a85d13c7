import type { RateLimit, UsageLimit } from '#libs/contracts/people/limits.ts';
import { rulesOfRecord, type LimitRule } from '#libs/limits/limit-rule.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';

type LimitedData = {
  usage_limits?: readonly UsageLimit[] | UsageLimit | null | undefined;
  rate_limits?: readonly RateLimit[] | null | undefined;
  usage_reset_at?: string | undefined;
};

/** The budget and the rates that a record has itself. `of`: which calls count; `label`: how messages call the record. */
export const rulesOfRow = (
  { id, workspace_id: workspaceId, data, created_at: createdAt }: ResourceRow<LimitedData>,
  { noun, label, of }: { noun: string; label: string; of: 'api_key' | 'credential' },
): LimitRule[] =>
  rulesOfRecord(
    {
      id,
      noun,
      workspaceId,
      label,
      createdAtMs: createdAt.getTime(),
      scope: { of, id },
      usageResetAtMs: data.usage_reset_at === undefined ? 0 : Date.parse(data.usage_reset_at),
    },
    data,
  );
