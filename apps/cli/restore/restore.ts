import { sql, type Kysely } from 'kysely';
import { countOpenBatches, type OpenBatches } from '#libs/batches/batch/open-batches.ts';
import type { ConnectedSession } from '#libs/database/connected-processes.ts';
import { blockStartsDuring } from '#libs/database/block-starts-during.ts';
import { canAssumeTenantRole } from '#libs/database/isolate-workspaces.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { organisationId } from '#libs/http/caller.ts';
import type { Database } from '#libs/database/schema.ts';
import { startEpoch } from '#libs/event-log/epoch.ts';
import { newestEvent } from '#libs/event-log/read-events.ts';
import { countOpenFineTuningJobs, jobsToFollow, jobsToStart } from '#libs/fine-tuning/open-jobs.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { lastReportAt } from '#libs/request-log/write/process-record.ts';
import { countRunningExports, exportsInProgress } from '#libs/request-log/read/run-log-export.ts';
import { compareMasterKeys } from '#libs/secrets/master-key.ts';
import { runChecks, type CheckReport } from '../checks/check.ts';
import { checks } from '../checks/checks.ts';
import { readMasterKeys } from '../operate/keys.ts';
import { recordCommand } from '../operate/operator-metadata.ts';
import { assertAlone, listRunning } from '../operate/running-processes.ts';
import { withMigratedPool } from '../operate/migrated-pool.ts';
import { inspectBlobs, openBlobStore, type BlobReport } from './inspect-blobs.ts';
import { rebuildTurns } from '#libs/batches/chunks/rebuild-turns.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { replaceLostJobs, type WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { allQueues } from '#apps/platform/queues.ts';

export type RestoreOptions = {
  connectionString: string;
  /** Uses the blob folder although it belongs to another database. */
  adoptBlobs: boolean;
  /** The file for the differences between rows and blobs, one JSON object per line; null: no file. */
  listFile: string | null;
  onProgress: (text: string) => void;
};

export type RestoreReport = {
  /** The migrations that this run applied. */
  migrations: string[];
  /** The last event; null for an empty log. */
  lastEvent: { position: number; recordedAt: Date } | null;
  /** When a process last reported its progress, which it does every 15 s; null if none ever did. */
  lastReportAt: Date | null;
  epoch: { epoch: number; isNew: boolean };
  /** Null if the keys are complete and correct. */
  masterKeyProblem: string | null;
  isIsolated: boolean;
  jobs: ReconciledJobs;
  /** Open work at the time of the backup. Lines that were called after the backup are called again. */
  open: OpenBatches & { fineTuningJobs: number; logExports: number };
  blobs: BlobReport;
  /** The reports of the checks in `restoreChecks`. */
  checks: CheckReport[];
  /**
   * Processes that were connected while no process could start, so they could have been running since before the restore.
   */
  survivors: ConnectedSession[];
};

/** These compare the parts of the dump with each other. */
const restoreChecks = checks.filter(({ name }) => name === 'records' || name === 'digests');

const applicationName = 'sluice-restore';

/** A running process checks for changed keys twice a second, so it shows up within this time. */
const watchMs = 1_500;

/**
 * Prepares an installation whose database and blobs were restored from a backup, and reports its findings: starts a new
 * epoch of the event log, creates jobs for all open work, compares blobs with their rows, and runs the checks of the event
 * log. Idempotent. Processes that start in the meantime wait until it has finished.
 *
 * Throws ConfigurationError, before it changes anything, if a process of Sluice is connected, if the database is empty, or
 * if the blob folder is missing or belongs to another database (unless `adoptBlobs`).
 */
export async function restore(options: RestoreOptions, logger: Logger): Promise<RestoreReport> {
  const { connectionString, onProgress } = options;
  await assertRestorable(options, logger);
  const migrations = await migrate({ connectionString, logger });
  return await blockStartsDuring({ connectionString, applicationName }, logger, async () => {
    const heldSinceMs = performance.now();
    return await withMigratedPool({ connectionString, applicationName }, logger, async (pool) => {
      const db = createDatabase(pool);
      await assertAlone(db, applicationName);
      const blobs = await openBlobStore(db, { adoptBlobs: options.adoptBlobs, mayChange: true });
      onProgress('the event log');
      const epoch = await startEpoch(db, organisationId);
      const lastEvent = await newestEvent(db);
      const reportedAt = await lastReportAt(db);
      const masterKeyProblem = await findMasterKeyProblem(db);
      const isIsolated = await canAssumeTenantRole(db);
      onProgress('jobs');
      const jobs = await reconcileJobs({ db, connectionString, logger });
      const open = {
        ...(await countOpenBatches(db)),
        fineTuningJobs: await countOpenFineTuningJobs(db),
        logExports: await countRunningExports(db),
      };
      const blobReport = await inspectBlobs({ db, blobs }, options);
      const reports = await runChecks(restoreChecks, { pool, db, logger, onProgress }, { repair: false });
      await recordCommand(db, 'restore', { epoch: epoch.epoch, migrations, jobs, adopted_blobs: options.adoptBlobs });
      await sleep(watchMs - (performance.now() - heldSinceMs));
      const survivors = await listRunning(db, applicationName);
      return {
        migrations,
        lastEvent,
        lastReportAt: reportedAt,
        epoch,
        masterKeyProblem,
        isIsolated,
        jobs,
        open,
        blobs: blobReport,
        checks: reports,
        survivors,
      };
    });
  });
}

/** Makes the checks that are possible before the migrations of this release. Throws the errors of `restore`. */
async function assertRestorable(options: RestoreOptions, logger: Logger): Promise<void> {
  const pool = createPool({ connectionString: options.connectionString, applicationName, max: 1 }, logger);
  try {
    const db = createDatabase(pool);
    const { rows } = await sql<{ empty: boolean }>`select to_regclass('installation') is null as empty`.execute(db);
    if (rows[0]?.empty !== false) {
      throw new ConfigurationError('The database is empty. Restore its dump first, as described in docs/backup.md.');
    }
    await assertAlone(db, applicationName);
    await openBlobStore(db, { adoptBlobs: options.adoptBlobs, mayChange: false });
  } finally {
    await pool.end();
  }
}

/** A sentence about missing or wrong master keys; null if they are complete. */
async function findMasterKeyProblem(db: Kysely<Database>): Promise<string | null> {
  try {
    const keys = await readMasterKeys();
    const needed = await compareMasterKeys(db, keys);
    const missing = Object.entries(needed).filter(([id]) => keys.every((key) => key.id !== id));
    if (missing.length === 0) return null;
    const each = missing.map(([id, count]) => `${count} secrets need the key with the ID ${id}`).join(', ');
    return `A master key from the time of the backup is missing: ${each}. Add it to SLUICE_MASTER_KEY after the current one.`;
  } catch (error) {
    if (error instanceof ConfigurationError) return error.message;
    throw error;
  }
}

export type ReconciledJobs = {
  /** Chunks and files of batches that workers held when the backup was made. */
  held: number;
  /** Batches whose place in the order was wrong or missing. */
  turns: number;
  fineTuningJobs: number;
  logExports: number;
};

/**
 * Makes open work available to the workers that start next: frees what earlier ones held, and enqueues missing jobs.
 * Creates the queue if the backup has none. No worker must be running.
 * @testOnly
 */
export async function reconcileJobs(deps: {
  db: Kysely<Database>;
  connectionString: string;
  logger: Logger;
}): Promise<ReconciledJobs> {
  const { db, connectionString, logger } = deps;
  // Otherwise each replaced job would log a line. The report contains their number.
  const quiet = logger.child({}, { level: 'error' });
  const queue = createJobQueue({ connectionString, role: 'sender', queues: allQueues, logger, poolSizeMax: 1 });
  await queue.start?.();
  try {
    const { held, turns } = await rebuildTurns(db);
    const replaceIn = <Payload extends object>(kind: WorkedOn<Payload>) =>
      replaceLostJobs({ db, queue, logger: quiet }, kind, '0 s');
    const fineTuningJobs = (await replaceIn(jobsToStart)) + (await replaceIn(jobsToFollow));
    const logExports = await replaceIn(exportsInProgress);
    return { held, turns, fineTuningJobs, logExports };
  } finally {
    await queue.stop?.();
  }
}
