import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { ApiKeyData } from './api-key-data.ts';
import { apiKeyModel } from './api-keys.ts';

/** The maximum number of keys per run; the next run continues. */
const keysMax = 500;
const metadata = { actor: { type: 'system' as const, id: 'key rotation' } };

/**
 * Records which keys should have been rotated by now, once for each date. It does not rotate them, because there would be no
 * one to show the new key to. Any number of processes can run this at the same time.
 */
export async function recordDueRotations({
  db,
  eventLog,
}: {
  db: Kysely<Database>;
  eventLog: EventLog;
}): Promise<void> {
  const { rows } = await sql<{ id: string; workspace_id: string }>`
    select id, workspace_id from resource
    where kind = 'api_key' and deleted_at is null and data ->> 'rotation_due_at' is null
      and (data -> 'rotation_policy' ->> 'next_rotation_at')::timestamptz <= clock_timestamp()
    limit ${keysMax}`.execute(db);
  for (const { id, workspace_id: workspaceId } of rows) {
    await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
      const row = await unit.load(apiKeyModel, id);
      const { rotation_policy: policy, rotation_due_at: recordedAt } = (row?.data ?? {}) as Partial<ApiKeyData>;
      const dueAt = policy?.next_rotation_at ?? null;
      // Another process was faster, or the key has just been rotated.
      if (!row || row.deleted_at || recordedAt || dueAt === null || Date.parse(dueAt) > unit.now.getTime()) return;
      await unit.append(apiKeyModel, id, [{ type: 'api_key.rotation_due', data: { next_rotation_at: dueAt } }]);
    });
  }
}
