import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { forbidNegativeCounters, listNegativeCounters, repairNegativeCounter } from '#libs/limits/counter-store.ts';
import { recordOfLimits } from '#libs/resources/integrations/integration-data.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceModel, usageRepairedVerb } from '#libs/records/resource-model.ts';

const model = resourceModel(resourceKinds);

/**
 * Repairs counters that are below 0, which earlier releases could store, and records an event of the record that has the
 * limit for each. Runs once in an installation: afterwards the table's constraint is validated. Returns how many counters
 * were below 0.
 */
export async function repairCounters(deps: {
  db: Kysely<Database>;
  eventLog: EventLog;
  logger: Logger;
}): Promise<number> {
  const { db, eventLog, logger } = deps;
  const counters = await listNegativeCounters(db);
  if (counters === null) return 0;
  for (const { id, workspaceId, limitId, valueKey } of counters) {
    const recordId = recordOfLimits(limitId.split('/')[0] ?? limitId);
    const metadata = { actor: { type: 'system' as const, id: 'limits' } };
    await eventLog.transact({ workspaceId, streams: [recordId], metadata }, async (unit) => {
      const repaired = await repairNegativeCounter(unit.tx, id);
      // Another process, which started at the same time, has repaired it.
      if (repaired === null) return;
      logger.warn({ record: recordId, value_key: valueKey, ...repaired }, 'a counter below 0 was repaired');
      const row = await unit.load(model, recordId);
      if (row === undefined || row.deleted_at !== null) return;
      const data = { entity_id: id, value_key: valueKey, ...repaired };
      await unit.append(model, recordId, [{ type: `${row.kind}.${usageRepairedVerb}`, data }]);
    });
  }
  await forbidNegativeCounters(db);
  return counters.length;
}
