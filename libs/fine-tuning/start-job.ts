import { sql, type Kysely } from 'kysely';
import type { BatchTarget, Database, FineTuningError } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { ClaimedJob, JobQueue } from '#libs/queue/job-queue.ts';
import {
  decideFineTuning,
  isTerminal,
  type FineTuningCommand,
  type RecordedFineTuningEvent,
} from './fine-tuning-job.ts';
import { fineTuningJobModel, type FineTuningJobRow } from './fine-tuning-job-model.ts';
import { firstLook, followQueue, startQueue, type StartPayload } from './fine-tuning-queues.ts';
import { recordIdOf } from './fine-tuning-records.ts';
import type { ProviderJob } from './read-provider-job.ts';
import { isPassing, jobTag, type FileToUpload, type TuningProvider } from './tuning-provider.ts';

export type TuningWork = {
  db: Kysely<Database>;
  eventLog: EventLog;
  queue: JobQueue;
  logger: Logger;
  /** Judges the job's target again, so that a rotated key is used. Throws GatewayError. */
  connect: (job: FineTuningJobRow, signal: AbortSignal) => Promise<TuningProvider>;
  releaseTarget: (unit: UnitOfWork, target: BatchTarget) => Promise<void>;
  /** The wait after `before`; `changed`: something was new, so more may be soon. Spread by chance. */
  nextWaitMs: (before: number, changed: boolean) => { allowedMs: number; waitMs: number };
};

type StartDeps = TuningWork & {
  /** The file's bytes, deleted meanwhile or not. Throws GatewayError when they are gone. */
  openFile: (workspaceId: string, fileId: string) => Promise<Omit<FileToUpload, 'filename'>>;
  /** The database's clock, which the job's creation was timed by. */
  clock: Clock;
  /** How long a provider may be away before the job is given up. */
  startWindowMs: number;
};

/**
 * The job of queue `fine-tuning-start`: uploads the files, creates the job at the provider, and hands it on to be followed.
 * Whatever was done before a crash or a lost reply is found again: files by their name, which holds our job's id, the job
 * by its metadata or its training file. A second create call is sent only when the provider's list shows no first one.
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
    const passing = isPassing(error) || error.kind === 'conflict';
    const givenUp = deps.clock.now() - row.created_at.getTime() > deps.startWindowMs;
    if (!passing || givenUp) {
      logger.info({ fine_tuning_job_id: id, code: error.code }, 'fine-tuning job was not accepted');
      await record(deps, row, job.id, [{ type: 'fail', error: toJobError(error) }]);
      return;
    }
    logger.warn({ fine_tuning_job_id: id, attempt, code: error.code }, 'fine-tuning job waits for its provider');
    // Said once: the next tries are a matter of course.
    if (attempt === 0 && job.retryCount === 0) {
      const note = noteOf(
        id,
        'waits',
        `The provider cannot take the job yet and will be asked again: ${error.message}`,
      );
      await record(deps, row, job.id, [{ type: 'observe', view: null, events: [note], checkpoints: [] }]);
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
  const repeated = job.payload.attempt > 0 || job.retryCount > 0;
  const upload = async (fileId: string, role: 'training' | 'validation'): Promise<string> => {
    const filename = `${row.id}-${role}.jsonl`;
    const found = repeated ? await provider.findFile(filename, row.created_at) : null;
    return found ?? (await provider.uploadFile({ ...(await deps.openFile(row.workspace_id, fileId)), filename }));
  };
  const trainingFileId = await upload(row.training_file_id, 'training');
  const validationFileId = row.validation_file_id === null ? null : await upload(row.validation_file_id, 'validation');
  let recorded = false;
  const command = { type: 'record_upload' as const, trainingFileId, validationFileId };
  const after = await record(deps, row, job.id, [command], async () => {
    recorded = true;
  });
  if (isTerminal(after.status) || after.provider_job_id !== null) return null;
  // Another worker was quicker with the upload: it may have sent its create call.
  return { row: after, mayBeThere: !recorded };
}

async function createThere(
  deps: StartDeps,
  job: ClaimedJob<StartPayload>,
  row: FineTuningJobRow,
  provider: TuningProvider,
  mayBeThere: boolean,
): Promise<void> {
  const { db, queue, logger } = deps;
  // The file was uploaded for this job alone, and tells it where a provider keeps no metadata.
  const isOurs = ({ metadata, training_file }: ProviderJob): boolean =>
    metadata?.[jobTag] === undefined ? training_file === row.provider_training_file_id : metadata[jobTag] === row.id;
  let there = mayBeThere ? await provider.findJob(isOurs, row.created_at) : null;
  if (!there) {
    const withdrawn = await record(deps, row, job.id, [{ type: 'withdraw' }]);
    if (isTerminal(withdrawn.status)) return;
    // The last look before the call that must be made once: who lost the claim leaves it to whoever has it now.
    if (!(await queue.holds(db, startQueue, job))) return;
    there = await provider.createJob(toRequest(row), row.id);
  }
  const accepted = await record(deps, row, job.id, [{ type: 'accept', providerJobId: there.id }], async (unit) => {
    await queue.enqueue(unit.tx, followQueue, firstLook(row.id, null));
  });
  if (accepted.provider_job_id === there.id) return;
  // Two workers created it at the same moment, or it was ended meanwhile: this one is one too many.
  const surplus = { fine_tuning_job_id: row.id, provider_job_id: there.id };
  logger.warn(surplus, 'a fine-tuning job that nobody waits for is cancelled at its provider');
  await provider.controlJob(there.id, 'cancel').catch((error: unknown) => {
    logger.error({ ...surplus, err: error }, 'a fine-tuning job that nobody waits for was not cancelled');
  });
}

const metadataPairsMax = 16;

/** What the provider gets: the request as it was made, its own file ids, and a tag to find the job again. */
function toRequest(row: FineTuningJobRow): object {
  const { metadata } = row;
  // How the job is named here is not for the provider.
  const { sent_model: _sent, virtual_key: _slug, ...request } = row.request;
  const tagged = Object.keys(metadata ?? {}).length < metadataPairsMax ? { ...metadata, [jobTag]: row.id } : metadata;
  return {
    ...request,
    training_file: row.provider_training_file_id,
    ...(row.provider_validation_file_id === null ? {} : { validation_file: row.provider_validation_file_id }),
    metadata: tagged,
  };
}

/** The job once more, after a wait that grows; nothing when the claim was lost. */
async function tryAgain(deps: StartDeps, job: ClaimedJob<StartPayload>, toldMs: number): Promise<void> {
  const { job_id, attempt } = job.payload;
  const { waitMs } = deps.nextWaitMs(2_000 * 2 ** Math.min(attempt, 10), false);
  await deps.db.transaction().execute(async (tx) => {
    if (!(await deps.queue.complete(tx, startQueue, job))) return;
    const startAfter = await dueAfter(tx, Math.max(waitMs, toldMs));
    await deps.queue.enqueue(tx, startQueue, { job_id, attempt: attempt + 1 }, { startAfter });
  });
}

// A provider that asks for more is asked again after a day: a mistaken Retry-After must not be the end of a job.
const waitMsMax = 86_400_000;

/** So many milliseconds from now, a day at most, by the database's clock, by which the queue looks for what is due. */
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
 * Decides commands on the job as it is now and appends what they make; `onChange` runs in the same transaction when there
 * is anything. Ends the life of the job's credential with the job.
 */
export async function record(
  deps: Pick<TuningWork, 'eventLog' | 'releaseTarget'>,
  { id, workspace_id: workspaceId }: FineTuningJobRow,
  causationId: string,
  commands: readonly FineTuningCommand[],
  onChange?: (unit: UnitOfWork) => Promise<void>,
): Promise<FineTuningJobRow> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: causationId };
  return await deps.eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
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

/** An event of our own. `occasion` tells it from the job's others: a repeat has the same id. */
export function noteOf(jobId: string, occasion: string, message: string): RecordedFineTuningEvent {
  return {
    id: recordIdOf('ftevent-', jobId, `sluice:${occasion}`),
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
