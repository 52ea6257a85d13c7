import type { Kysely } from 'kysely';
import type { BudgetRefusal } from '#libs/calls/call.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { decideBatch } from '../batch.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';

/**
 * Records that lines of a batch wait for a budget, unless it is known already (`decideBatch`): one event for each wait, however
 * many workers and chunks notice it.
 */
export async function recordBudgetWait(
  { db, eventLog }: { db: Kysely<Database>; eventLog: EventLog },
  batchId: string,
  { recordId, message, resetsAtMs }: BudgetRefusal,
): Promise<void> {
  const found = await db.selectFrom('batch').select('workspace_id').where('id', '=', batchId).executeTakeFirst();
  if (found === undefined) return;
  const until = resetsAtMs === null ? null : new Date(resetsAtMs).toISOString();
  const metadata = { actor: { type: 'system' as const, id: 'worker' } };
  const command = { workspaceId: found.workspace_id, streams: [batchId], metadata };
  await eventLog.transact(command, async (unit) => {
    const batch = (await unit.load(batchModel, batchId)) as BatchRow;
    const wait = { type: 'record_budget_wait' as const, wait: { limit: recordId, message, until } };
    await unit.append(batchModel, batchId, decideBatch(batch, wait, unit.now));
  });
}
