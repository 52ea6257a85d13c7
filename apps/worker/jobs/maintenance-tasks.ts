import { sql } from 'kysely';
import { sweepRollups } from '#libs/analytics/rollups/sweep-rollups.ts';
import { dropOldResults } from '#libs/batches/results/results-bucket.ts';
import { sweepUploads } from '#libs/files/uploads.ts';
import { sweepRecordedBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { findReferencedBlobs } from '#libs/files/referenced-blobs.ts';
import { sweepCallLimits } from '#libs/limits/call-limit-store.ts';
import { sweepCounters } from '#libs/limits/counter-store.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { recordDueRotations } from '#libs/resources/api-keys/record-due-rotations.ts';
import { sweepDeliveries } from '#libs/resources/webhooks/webhook-deliveries.ts';
import { createKilledReport } from '#libs/request-log/audit/report-killed.ts';
import { dropRequestLogPartitions } from '#libs/request-log/write/log-partitions.ts';
import { sweepLogExports } from '#libs/request-log/read/run-log-export.ts';
import { sweepStoredObjects } from '#libs/calls/protect/stored-objects/object-owners.ts';
import { sweepCircuits } from '#libs/calls/protect/traffic/shared-circuits.ts';
import { createStoredAnswers } from '#libs/calls/protect/response-cache/stored-answers.ts';
import { sweepLateUsage } from '#libs/policies/late-usage.ts';
import type { WorkerConfig } from '../config.ts';
import { eraseRequested } from '../../platform/erase-person.ts';
import type { Platform } from '../../platform/platform.ts';
import type { MaintenanceTask } from './maintenance.ts';

/** The tasks of maintenance. Each is a separate job, which runs once per installation. */
export const maintenanceTasks = (
  config: WorkerConfig,
  { db, databaseClock, eventLog, files, blobs }: Platform,
  logger: Logger,
): readonly MaintenanceTask[] => [
  {
    name: 'report killed processes',
    everySeconds: 30,
    run: createKilledReport({ db, logger }),
    ignoresClock: true,
  },
  { name: 'expire files', everySeconds: 60, run: () => files.expire() },
  { name: 'record due key rotations', everySeconds: 60, run: () => recordDueRotations({ db, eventLog }) },
  { name: 'erase people', everySeconds: 60, run: () => eraseRequested(db) },
  { name: 'forget command results', everySeconds: 3_600, run: () => forgetCommandResults(db) },
  {
    name: 'drop old results',
    everySeconds: 3_600,
    run: () => dropOldResults(db, new Date(databaseClock.now() - config.SLUICE_RESULTS_RETENTION)),
  },
  {
    name: 'drop old request log',
    everySeconds: 3_600,
    run: () =>
      dropRequestLogPartitions(db, Math.ceil(config.SLUICE_REQUEST_LOG_RETENTION / 86_400_000), databaseClock.now()),
  },
  {
    name: 'drop old rollups',
    everySeconds: 3_600,
    run: () =>
      sweepRollups(db, {
        retention: {
          minute: config.SLUICE_ANALYTICS_MINUTES,
          hour: config.SLUICE_ANALYTICS_HOURS,
          day: config.SLUICE_ANALYTICS_DAYS,
        },
        logRetentionMs: config.SLUICE_REQUEST_LOG_RETENTION,
        nowMs: databaseClock.now(),
      }),
  },
  { name: 'drop uploads that were not completed', everySeconds: 600, run: () => sweepUploads(db, blobs) },
  { name: 'drop old recorded bodies', everySeconds: 600, run: () => sweepRecordedBodies(db, blobs) },
  {
    name: 'drop old log exports',
    everySeconds: 3_600,
    run: () => sweepLogExports(db, config.SLUICE_EXPORT_RETENTION),
  },
  {
    name: 'sweep response cache',
    everySeconds: 60,
    run: () => createStoredAnswers(db).sweep(config.SLUICE_CACHE_WORKSPACE_MAX),
  },
  { name: 'sweep limit counters', everySeconds: 3_600, run: () => sweepCounters(db) },
  { name: 'sweep call limits', everySeconds: 3_600, run: () => sweepCallLimits(db) },
  { name: 'sweep circuits', everySeconds: 3_600, run: () => sweepCircuits(db) },
  { name: 'sweep stored objects', everySeconds: 3_600, run: () => sweepStoredObjects(db) },
  { name: 'sweep webhook deliveries', everySeconds: 3_600, run: () => sweepDeliveries(db) },
  { name: 'sweep late usage', everySeconds: 3_600, run: () => sweepLateUsage(db) },
  {
    name: 'sweep blobs',
    everySeconds: 3_600,
    run: () => blobs.sweep({ olderThanMs: 86_400_000, findReferenced: (names) => findReferencedBlobs(db, names) }),
  },
];

/** Idempotency keys are valid for at least a day. */
async function forgetCommandResults(db: Platform['db']): Promise<void> {
  await db
    .deleteFrom('command_result')
    .where('recorded_at', '<', sql<Date>`clock_timestamp() - interval '48 hours'`)
    .execute();
}
