import { sql } from 'kysely';
import { sweepRollups } from '#libs/analytics/rollups/sweep-rollups.ts';
import { deleteOldResults } from '#libs/batches/results/delete-old-results.ts';
import { sweepUploads } from '#libs/files/uploads.ts';
import { sweepRecordedBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { findReferencedBlobs } from '#libs/files/referenced-blobs.ts';
import { sweepCallLimits } from '#libs/limits/call-limit-store.ts';
import { sweepCounters } from '#libs/limits/counter-store.ts';
import { recordDeletion, type Deletion } from '#libs/people/facts/record-deletions.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { recordDueRotations } from '#libs/resources/api-keys/record-due-rotations.ts';
import { deliveryDays, sweepDeliveries } from '#libs/resources/webhooks/webhook-deliveries.ts';
import { createKilledReport } from '#libs/request-log/audit/report-killed.ts';
import { sealCalls } from '#libs/request-log/seal/seal-calls.ts';
import { deleteOldCalls } from '#libs/request-log/write/delete-old-calls.ts';
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
  platform: Platform,
  logger: Logger,
): readonly MaintenanceTask[] => [...retentionTasks(config, platform), ...otherTasks(config, platform, logger)];

const dayMs = 86_400_000;

/** Deletes what is older than the operator, or its workspace, keeps it. Each deletion is an event. */
function retentionTasks(
  config: WorkerConfig,
  { db, databaseClock, eventLog, files, blobs }: Platform,
): MaintenanceTask[] {
  const olderThan = (ageMs: number): Date => new Date(databaseClock.now() - ageMs);
  const record = (kind: string, unit: string, before: Date, deleted: Pick<Deletion, 'workspaces' | 'unknown'>) =>
    recordDeletion(eventLog, { kind, unit, before: before.toISOString(), ...deleted });
  return [
    // Each of them has its own event.
    { name: 'expire files', everySeconds: 60, run: () => files.expire() },
    {
      name: 'drop old results',
      everySeconds: 3_600,
      async run() {
        const times = { days: config.SLUICE_RESULTS_RETENTION / dayMs, nowMs: databaseClock.now() };
        await deleteOldResults(db, times, (deleted) => recordDeletion(eventLog, deleted));
      },
    },
    {
      name: 'drop old request log',
      everySeconds: 3_600,
      async run() {
        const days = Math.ceil(config.SLUICE_REQUEST_LOG_RETENTION / dayMs);
        await deleteOldCalls(db, days, databaseClock.now(), (deleted) => recordDeletion(eventLog, deleted));
      },
    },
    {
      name: 'drop old rollups',
      everySeconds: 3_600,
      async run() {
        const { SLUICE_ANALYTICS_MINUTES: minute, SLUICE_ANALYTICS_HOURS: hour, SLUICE_ANALYTICS_DAYS: day } = config;
        const logRetentionMs = config.SLUICE_REQUEST_LOG_RETENTION;
        const retention = { minute, hour, day };
        const deleted = await sweepRollups(db, { retention, logRetentionMs, nowMs: databaseClock.now() });
        await record('analytics', 'rows', olderThan(minute), { unknown: deleted.rollups });
        await record('feedback', 'rows', olderThan(day), { unknown: deleted.feedback });
      },
    },
    {
      name: 'drop uploads that were not completed',
      everySeconds: 600,
      run: async () => await record('uploads', 'parts', olderThan(0), { workspaces: await sweepUploads(db, blobs) }),
    },
    {
      name: 'drop old recorded bodies',
      everySeconds: 600,
      async run() {
        await record('recorded_bodies', 'calls', olderThan(0), { workspaces: await sweepRecordedBodies(db, blobs) });
      },
    },
    {
      name: 'drop old log exports',
      everySeconds: 3_600,
      async run() {
        const ageMs = config.SLUICE_EXPORT_RETENTION;
        await record('log_exports', 'files', olderThan(ageMs), { workspaces: await sweepLogExports(db, ageMs) });
      },
    },
    {
      name: 'sweep webhook deliveries',
      everySeconds: 3_600,
      async run() {
        const before = olderThan(deliveryDays * dayMs);
        await record('webhook_deliveries', 'deliveries', before, { workspaces: await sweepDeliveries(db) });
      },
    },
  ];
}

/** Everything else, such as removing caches, counters and rows that nothing refers to any more. */
const otherTasks = (config: WorkerConfig, { db, eventLog, blobs }: Platform, logger: Logger): MaintenanceTask[] => [
  {
    name: 'report killed processes',
    everySeconds: 30,
    run: createKilledReport({ db, logger }),
    ignoresClock: true,
  },
  { name: 'record due key rotations', everySeconds: 60, run: () => recordDueRotations({ db, eventLog }) },
  {
    name: 'seal calls',
    everySeconds: 600,
    run: () => sealCalls({ db, eventLog, logger }),
    ignoresClock: true,
  },
  { name: 'erase people', everySeconds: 60, run: () => eraseRequested(db) },
  { name: 'forget command results', everySeconds: 3_600, run: () => forgetCommandResults(db) },
  {
    name: 'sweep response cache',
    everySeconds: 60,
    run: () => createStoredAnswers(db).sweep(config.SLUICE_CACHE_WORKSPACE_MAX),
  },
  { name: 'sweep limit counters', everySeconds: 3_600, run: () => sweepCounters(db) },
  { name: 'sweep call limits', everySeconds: 3_600, run: () => sweepCallLimits(db) },
  { name: 'sweep circuits', everySeconds: 3_600, run: () => sweepCircuits(db) },
  { name: 'sweep stored objects', everySeconds: 3_600, run: () => sweepStoredObjects(db) },
  { name: 'sweep late usage', everySeconds: 3_600, run: () => sweepLateUsage(db) },
  {
    name: 'sweep blobs',
    everySeconds: 3_600,
    run: () => blobs.sweep({ olderThanMs: dayMs, findReferenced: (names) => findReferencedBlobs(db, names) }),
  },
];

/** Idempotency keys are valid for at least a day. */
async function forgetCommandResults(db: Platform['db']): Promise<void> {
  await db
    .deleteFrom('command_result')
    .where('recorded_at', '<', sql<Date>`clock_timestamp() - interval '48 hours'`)
    .execute();
}
