import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

// A deleted file disappears from the API at once. Its bytes are swept within about a day.
const sweptAfter = '25 hours';

/**
 * Throws quota_exceeded when the files of a workspace already hold `bytesMax`, including deleted ones that were not swept
 * yet. Called before an upload, when its size is not known, so uploads that run at the same time may pass the limit.
 */
export async function admitUpload(db: Kysely<Database>, workspaceId: string, bytesMax: number): Promise<void> {
  const { rows } = await sql<{ bytes: number }>`
    select coalesce(sum(bytes), 0)::int8 as bytes from file
    where workspace_id = ${workspaceId}
      and (deleted_at is null or deleted_at > (select clock_timestamp()) - ${sweptAfter}::interval)`.execute(db);
  const bytes = rows[0]?.bytes ?? 0;
  if (bytes < bytesMax) return;
  const message = `The files of this workspace hold ${bytes} bytes, and its limit is ${bytesMax}. Delete some; their bytes are freed within a day.`;
  throw new GatewayError('quota_exceeded', 'storage_quota_exceeded', message);
}
