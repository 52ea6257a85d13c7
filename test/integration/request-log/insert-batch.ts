import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** Inserts a batch that calls in the log can name. Without `completedMs` it is still running. */
export async function insertBatch(
  db: Kysely<Database>,
  batch: { id: string; workspaceId: string; createdMs: number; completedMs?: number },
): Promise<void> {
  const createdAt = new Date(batch.createdMs);
  await db
    .insertInto('batch')
    .values({
      id: batch.id,
      workspace_id: batch.workspaceId,
      version: 1,
      updated_at: createdAt,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      input_file_id: 'file-1',
      target: '{"type":"none"}',
      gateway_options: '{}',
      headers: '{}',
      status: batch.completedMs === undefined ? 'in_progress' : 'completed',
      chunk_count: 1,
      total: 1,
      completed: 1,
      failed: 0,
      usage: '{}',
      created_at: createdAt,
      completed_at: batch.completedMs === undefined ? null : new Date(batch.completedMs),
      expires_at: new Date(batch.createdMs + 86_400_000),
    })
    .execute();
}
