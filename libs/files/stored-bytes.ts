import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

// A deleted file is gone from the API at once; its bytes are swept within about a day.
const sweptAfter = '25 hours';

/**
 * Throws quota_exceeded when the files of a workspace hold `bytesMax` already, those included whose bytes were not swept
 * yet. Asked before an upload, whose size is not known: it may go beyond once, and so may each that runs beside it.
 */
export async function admitUpload(db: Kysely<Database>, workspaceId: string, bytesMax: number): Promise<void> {
  const { rows } = await sql<{ bytes: number }>`
    select coalesce(sum(bytes), 0)::int8 as bytes from file
    where workspace_id = ${workspaceId}
      and (deleted_at is null or deleted_at > (select clock_timestamp()) - ${sweptAfter}::interval)`.execute(db);
  const bytes = rows[0]?.bytes ?? 0;
  if (bytes < bytesMax) return;
  const message = `The files of this workspace use ${bytes} of at most ${bytesMax} bytes. Delete some; their space is freed within a day.`;
  throw new GatewayError('quota_exceeded', 'storage_quota_exceeded', message);
}
