import { sql } from 'kysely';
import { runForWorkspace } from '#libs/database/workspace-binding.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { ApiKeyData } from './api-key-data.ts';

/**
 * Refuses a caller whose key has a budget, rates or locked metadata, or is named by a policy: it could bypass these with
 * other keys, or by changing them. `what` completes the sentence "it cannot". Throws forbidden.
 */
export async function refuseLimited(
  { unit, caller }: { unit: UnitOfWork; caller: Caller },
  what: string,
): Promise<void> {
  const named = JSON.stringify([{ key: 'api_key', value: caller.keyId }]);
  const find = sql<{ data: Partial<ApiKeyData>; isNamed: boolean }>`
    select data, exists (
      select from resource where kind in ('usage_limit_policy', 'rate_limit_policy')
        and workspace_id = ${caller.workspaceId} and deleted_at is null and data -> 'conditions' @> ${named}::jsonb
    ) as "isNamed"
    from resource where kind = 'api_key' and id = ${caller.keyId}`;
  // The record of an organisation key that acts in another workspace is in the key's own workspace.
  const { rows } = await runForWorkspace(caller.workspaceId, () => find.execute(unit.tx));
  const { data, isNamed = false } = rows[0] ?? {};
  const { usage_limits: usage, rate_limits: rates, defaults } = data ?? {};
  if (!usage && !rates?.length && defaults?.locked_metadata === undefined && !isNamed) return;
  const message = `The key of this request has a budget, rate limits, locked metadata or a policy, so it cannot ${what}. Use a key without limits.`;
  throw new GatewayError('forbidden', 'limited_key', message);
}
