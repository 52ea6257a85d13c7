import { sql, type Kysely } from 'kysely';
import type { BatchTarget, Database, FineTuningError } from '#libs/database/schema.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { ClaimedJob } from '#libs/queue/queue-definition.ts';
import {
  decideFineTuning,
  isTerminal,
  type FineTuningCommand,
  type RecordedFineTuningEvent,
} from './fine-tuning-job.ts';
import { fineTuningJobModel, type FineTuningJobRow } from './fine-tuning-job-model.ts';
import { firstPoll, followQueue, startQueue, type StartPayload } from './fine-tuning-queues.ts';
import { isFromOlderEpoch, makeRecordId } from './fine-tuning-records.ts';
import type { ProviderJob } from './read-provider-job.ts';
import { isRetryable, jobTag, type FileToUpload, type TuningProvider } from './tuning-provider.ts';

export type TuningWork = {
  db: Kysely<Database>;
  eventLog: EventLog;
  queue: JobQueue;
  logger: Logger;
  /** Resolves the job's target again, so that a rotated key is used. Throws GatewayError. */
  connect: (job: FineTuningJobRow, signal: AbortSignal) => Promise<TuningProvider>;
  releaseTarget: (unit: UnitOfWork, target: BatchTarget) => Promise<void>;
  /**
   * The wait that follows one of `before`, with jitter. It is short after a change, because more changes can follow soon.
   */
  nextWaitMs: (before: number, changed: boolean) => { allowedMs: number; waitMs: number };
};

type StartDeps = TuningWork & {
  /** The file's bytes, even if it was deleted meanwhile. Throws GatewayError when the bytes no longer exist. */
  openFile: (workspaceId: string, fileId: string) => Promise<Omit<FileToUpload, 'filename'>>;
  /** The database's clock, which also set the job's creation time. */
  clock: Clock;
  /** How long a provider can be unavailable before the job fails. */
  startWindowMs: number;
};

/**
 * The job of queue `fine-tuning-start`: uploads the files, creates the job at the provider, and enqueues the first
 * poll. Steps from before a crash or a lost reply are found again: files by their name, which contains our job's ID,
 * and the job by its metadata or its training file. A second create call is only sent if the provider's list does not
 * show a first one.
 */
export async function startJob(deps: StartDeps, job: ClaimedJob<StartPayload>, signal: AbortSignal): Promise<void> {
  const { db, logger } = deps;
  const { job_id: id, attempt } = job.payload;
  const row = await db.selectFrom('fine_tuning_job').selectAll().where('id', '=', id).executeTakeFirst();
  if (!row || isTerminal(row.status) || row.provider_job_id !== null) return;
  try {
    const provider = await deps.connect(row, signal);
    const uploaded = await uploadFiles(deps, job, row, provider);
    if (uploaded) await createThere(deps, job, uploaded.row, provider, uploaded.mayBeThere);
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    const passing = isRetryable(error) || error.kind === 'conflict';
    const givenUp = deps.clock.now() - row.created_at.getTime() > deps.startWindowMs;
    if (!passing || givenUp) {
      logger.info({ fine_tuning_job_id: id, code: error.code }, 'fine-tuning job was not accepted');
      job.note?.('refused');
      await record(deps, row, [{ type: 'fail', error: toJobError(error) }]);
      return;
    }
    logger.warn({ fine_tuning_job_id: id, attempt, code: error.code }, 'fine-tuning job is waiting for its provider');
    job.note?.('provider_unavailable');
    // Only the first failed try gets an event.
    if (attempt === 0 && job.retryCount === 0) {
      const note = makeLocalEvent(
        id,
        'waits',
        `The provider cannot accept the job yet. Sluice will retry: ${error.message}`,
      );
      await record(deps, row, [{ type: 'observe', view: null, events: [note], checkpoints: [] }]);
    }
    await tryAgain(deps, job, error.retryAfterMs ?? 0);
  }
}

/** null: the job was cancelled meanwhile. `mayBeThere`: a create call may have been sent already. */
async function uploadFiles(
  deps: StartDeps,
  job: ClaimedJob<StartPayload>,
  row: FineTuningJobRow,
  provider: TuningProvider,
): Promise<{ row: FineTuningJobRow; mayBeThere: boolean } | null> {
  if (row.provider_training_file_id !== null) return { row, mayBeThere: true };
  const isRestored = await isFromOlderEpoch(deps.db, row.id);
  const repeated = job.payload.attempt > 0 || job.retryCount > 0 || isRestored;
  const upload = async (fileId: string, role: 'training' | 'validation'): Promise<string> => {
    const filename = `${row.id}-${role}.jsonl`;
    const found = repeated ? await provider.findFile(filename, row.created_at) : null;
    return found ?? (await provider.uploadFile({ ...(await deps.openFile(row.workspace_id, fileId)), filename }));
  };
  const trainingFileId = await upload(row.training_file_id, 'training');
  const validationFileId = row.validation_file_id === null ? null : await upload(row.validation_file_id, 'validation');
  let recorded = false;
  const command = { type: 'record_upload' as const, trainingFileId, validationFileId };
  const after = await record(deps, row, [command], async () => {
    recorded = true;
  });
  if (isTerminal(after.status) || after.provider_job_id !== null) return null;
  // If another worker was faster with the upload, it may have sent its create call.
  return { row: after, mayBeThere: !recorded || isRestored };
}

async function createThere(
  deps: StartDeps,
  job: ClaimedJob<StartPayload>,
  row: FineTuningJobRow,
  provider: TuningProvider,
  mayBeThere: boolean,
): Promise<void> {
  const { db, queue, logger } = deps;
  // The training file was uploaded for this job only, so it identifies the job if the provider stores no metadata.
  const isOurs = ({ metadata, training_file }: ProviderJob): boolean =>
    metadata?.[jobTag] === undefined ? training_file === row.provider_training_file_id : metadata[jobTag] === row.id;
  let there = mayBeThere ? await provider.findJob(isOurs, row.created_at) : null;
  if (!there) {
    const withdrawn = await record(deps, row, [{ type: 'withdraw' }]);
    if (isTerminal(withdrawn.status)) return;
    // The last check before the call that must only be made once: if the claim was lost, another worker makes it.
    if (!(await queue.holds(db, startQueue, job))) return;
    there = await provider.createJob(toRequest(row), row.id);
  }
  const accepted = await record(deps, row, [{ type: 'accept', providerJobId: there.id }], async (unit) => {
    await queue.enqueue(unit.tx, followQueue, firstPoll(row.id, null));
  });
  if (accepted.provider_job_id === there.id) return;
  // Two workers created the job at the same moment, or it has ended meanwhile: this one is surplus.
  const surplus = { fine_tuning_job_id: row.id, provider_job_id: there.id };
  logger.warn(surplus, 'cancelling a surplus fine-tuning job at its provider');
  await provider.controlJob(there.id, 'cancel').catch((error: unknown) => {
    logger.error({ ...surplus, err: error }, 'a surplus fine-tuning job could not be cancelled at its provider');
  });
}

const metadataPairsMax = 16;

/** The request for the provider: the user's request, the provider's own file IDs, and a tag to find the job again. */
function toRequest(row: FineTuningJobRow): object {
  const { metadata } = row;
  // These two are only for internal use.
  const { sent_model: _sent, virtual_key: _slug, ...request } = row.request;
  const tagged = Object.keys(metadata ?? {}).length < metadataPairsMax ? { ...metadata, [jobTag]: row.id } : metadata;
  return {
    ...request,
    training_file: row.provider_training_file_id,
    ...(row.provider_validation_file_id === null ? {} : { validation_file: row.provider_validation_file_id }),
    metadata: tagged,
  };
}

/** Enqueues the job again after a wait that grows. Does nothing when the claim was lost. */
async function tryAgain(deps: StartDeps, job: ClaimedJob<StartPayload>, retryAfterMs: number): Promise<void> {
  const { attempt } = job.payload;
  const { waitMs } = deps.nextWaitMs(2_000 * 2 ** Math.min(attempt, 10), false);
  await deps.db.transaction().execute(async (tx) => {
    if (!(await deps.queue.complete(tx, startQueue, job))) return;
    const startAfter = await dueAfter(tx, Math.max(waitMs, retryAfterMs));
    await deps.queue.enqueue(tx, startQueue, { ...job.payload, attempt: attempt + 1 }, { startAfter });
  });
}

// The longest wait, so that a wrong Retry-After of a provider cannot stall a job forever.
const waitMsMax = 86_400_000;

/** The time `waitMs` from now, at most a day, by the database's clock, which the queue uses as well. */
export async function dueAfter(tx: Kysely<Database>, waitMs: number): Promise<Date> {
  const { rows } = await sql<{ at: Date }>`
    select clock_timestamp() + ${Math.ceil(Math.min(waitMs, waitMsMax))}::float8 * interval '1 millisecond' as at`.execute(
    tx,
  );
  const [row] = rows;
  if (!row) throw new Error('the clock statement returned no row');
  return row.at;
}

/**
 * Runs commands on the current state of the job and appends the resulting events. `onChange` runs in the same transaction
 * after each command that changed something. Releases the job's credential when the job ends.
 */
export async function record(
  deps: Pick<TuningWork, 'eventLog' | 'releaseTarget'>,
  { id, workspace_id: workspaceId }: FineTuningJobRow,
  commands: readonly FineTuningCommand[],
  onChange?: (unit: UnitOfWork) => Promise<void>,
): Promise<FineTuningJobRow> {
  return await deps.eventLog.transact({ workspaceId, streams: [id], metadata: byWorker }, async (unit) => {
    let row = (await unit.load(fineTuningJobModel, id)) as FineTuningJobRow;
    for (const command of commands) {
      const events = decideFineTuning(row, command);
      if (events.length === 0) continue;
      row = await unit.append(fineTuningJobModel, id, events);
      await onChange?.(unit);
      if (isTerminal(row.status)) await deps.releaseTarget(unit, row.target);
    }
    return row;
  });
}

/** Creates an event of our own. Its id is derived from `occasion`, so that a repeat has the same id. */
export function makeLocalEvent(jobId: string, occasion: string, message: string): RecordedFineTuningEvent {
  return {
    id: makeRecordId('ftevent-', jobId, `sluice:${occasion}`),
    provider_id: null,
    created_at: Math.floor(Date.now() / 1_000),
    level: 'warn',
    message,
    type: 'message',
    data: null,
  };
}

export function toJobError({ code, message, param }: GatewayError): FineTuningError {
  return { code: code ?? 'provider_error', message, param };
}
