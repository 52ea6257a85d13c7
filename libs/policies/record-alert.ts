import type { EventLog } from '#libs/event-log/event-log.ts';
import { isTransient } from '#libs/database/database-error.ts';
import { formatAmount, type Amount } from '#libs/kernel/amount.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { CounterName } from '#libs/limits/counter-store.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { claimAlert } from '#libs/limits/counter-store.ts';
import type { LimitTerms } from '#libs/limits/counter.ts';
import { recordOfLimits } from '#libs/resources/integrations/integration-data.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { alertQueue } from './deliver-alert.ts';

const model = resourceModel(resourceKinds);

/**
 * Records that a budget has reached its alert threshold: an event of the record that has the budget, once in a period,
 * whichever process is the first. For the budget of a workspace with an integration, that is the integration. With a
 * `queue`, the same transaction enqueues the delivery to the alert webhook. A failure is logged, and the next call that
 * counts tries again.
 */
export function createAlertRecorder({
  eventLog,
  logger,
  queue,
}: {
  eventLog: EventLog;
  logger: Logger;
  /** null if there is no webhook for alerts. */
  queue: JobQueue | null;
}) {
  let recorded = 0;
  const record = async ({ id, workspaceId, limitId, valueKey }: CounterName, terms: LimitTerms, used: Amount) => {
    const recordId = recordOfLimits(limitId.split('/')[0] ?? limitId);
    const metadata = { actor: { type: 'system' as const, id: 'limits' } };
    await eventLog.transact({ workspaceId, streams: [recordId], metadata }, async (unit) => {
      const row = await unit.load(model, recordId);
      if (row === undefined || row.deleted_at !== null || !(await claimAlert(unit.tx, id))) return;
      const threshold = terms.alertAt === null ? null : formatAmount(terms.alertAt);
      const amounts = { used: formatAmount(used), threshold, limit: formatAmount(terms.max) };
      // The budget of a workspace with an integration of the organisation is an event in the organisation.
      const place = row.workspace_id === workspaceId ? {} : { workspace_id: workspaceId };
      const data = { entity_id: id, value_key: valueKey, ...amounts, ...place };
      const { version } = await unit.append(model, recordId, [{ type: `${row.kind}.alert_reached`, data }]);
      await queue?.enqueue(unit.tx, alertQueue, { record_id: recordId, version });
      recorded += 1;
    });
    logger.warn(
      { record: recordId, value_key: valueKey, used: formatAmount(used) },
      'a budget has reached its alert threshold',
    );
  };
  return {
    onAlertDue: (counter: CounterName, terms: LimitTerms, used: Amount): void => {
      record(counter, terms, used).catch((error: unknown) => {
        logger[isTransient(error) ? 'warn' : 'error']({ err: error }, 'a budget alert cannot be recorded yet');
      });
    },
    recorded: () => recorded,
  };
}
