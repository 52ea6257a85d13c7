import { sql } from 'kysely';
import { runForWorkspace } from '#libs/database/workspace-binding.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { ApiKeyData } from './api-key-data.ts';

/**
 * Refuses a caller whose key has a budget or rates: it would get around them with other keys, or by changing them. `what`
 * ends the sentence "it cannot". Throws forbidden.
 */
export async function refuseLimited(
  { unit, caller }: { unit: UnitOfWork; caller: Caller },
  what: string,
): Promise<void> {
  const find = sql<{ data: Partial<ApiKeyData> }>`
    select data from resource where kind = 'api_key' and id = ${caller.keyId}`;
  // Of a key of the organisation that acts in another workspace, the record is in its own.
  const { rows } = await runForWorkspace(caller.workspaceId, () => find.execute(unit.tx));
  const { usage_limits: usage, rate_limits: rates } = rows[0]?.data ?? {};
  if (!usage && !rates?.length) return;
  const message = `The key of this request has a budget or rate limits, so it cannot ${what}. Use a key without limits.`;
  throw new GatewayError('forbidden', 'limited_key', message);
}
