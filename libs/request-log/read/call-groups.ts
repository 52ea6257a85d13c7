import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { RequestLogTable } from '../columns.ts';
import { lowestLogUuid, utcDay } from '../row/log-id.ts';

type CallGroup = Pick<
  RequestLogTable,
  'key_id' | 'provider' | 'virtual_key' | 'model' | 'public_model' | 'config_id' | 'config' | 'prompt_slug' | 'metadata'
> & { cost: string; tokens: string; unpriced: number };

/**
 * The usage of a workspace's calls that were recorded at or after `sinceMs`, grouped by everything that limits can
 * distinguish. Sums are decimals: US cents of the calls with a price, and tokens in and out. Imported calls are left
 * out, and so is the usage of objects that were only read.
 */
export async function readCallGroups(db: Kysely<Database>, workspaceId: string, sinceMs: number): Promise<CallGroup[]> {
  const from = Math.max(0, Math.floor(sinceMs));
  const { rows } = await sql<CallGroup>`
    select key_id, provider, virtual_key, model, public_model, config_id, config, prompt_slug, metadata,
      coalesce(sum(cost), 0)::text as cost,
      coalesce(sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) filter (where method is distinct from 'GET'), 0)::text
        as tokens,
      count(*) filter (where cost is null)::int as unpriced
    from request_log
    where workspace_id = ${workspaceId} and kind in ('live', 'batch')
      and recorded_on >= ${utcDay(from)}::date and id >= ${lowestLogUuid(from)}::uuid and last_id >= ${lowestLogUuid(from)}::uuid
    group by key_id, provider, virtual_key, model, public_model, config_id, config, prompt_slug, metadata`.execute(db);
  return rows;
}
