import type { BlobStore, StoredBlob } from '#libs/blobs/blob-store.ts';
import type { FineTuningError, FineTuningStatus } from '#libs/database/schema.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { ClaimedJob } from '#libs/queue/queue-definition.ts';
import { decideFineTuning, isTerminal, type FineTuningControl, type FineTuningEvent } from './fine-tuning-job.ts';
import { fineTuningJobModel, type FineTuningJobRow } from './fine-tuning-job-model.ts';
import { followQueue, type FollowPayload } from './fine-tuning-queues.ts';
import { findRecorded } from './fine-tuning-records.ts';
import { pollJob, type Poll } from './poll-job.ts';
import { toView } from './read-provider-job.ts';
import { dueAfter, makeLocalEvent, record, toJobError, type TuningWork } from './start-job.ts';
import { isRetryable, type TuningProvider } from './tuning-provider.ts';

type FollowDeps = TuningWork & {
  blobs: Pick<BlobStore, 'put' | 'remove'>;
  /** Makes a blob a file of the workspace, inside the transaction that has locked the file's stream. */
  recordFile: (unit: UnitOfWork, id: string, file: { filename: string; blob: StoredBlob }) => Promise<void>;
  /** Records which workspace owns the models that a job has made, if workspaces share the provider's account. */
  recordModels: (job: FineTuningJobRow, models: readonly string[]) => Promise<void>;
};

/** After this many polls in a row that did not find the job, it counts as deleted at the provider. */
const missesMax = 5;
/** After this many failed polls in a row, the job gets an event about it. */
const failuresBeforeNote = 3;
/** How many polls can leave the job's end unrecorded because a result file cannot be read now. */
const postponedMax = 5;
/** Records appended in one transaction. A long job that was not polled for hours has thousands. */
const recordsPerTransaction = 500;

type ResultFile = { id: string; filename: string; blob: StoredBlob };
type Found = Poll & { results: ResultFile[] };

/**
 * The job of queue `fine-tuning-follow`: sends the requests for the job to the provider, polls the job, its events and
 * checkpoints there, and appends those that are new. The next poll is enqueued in the transaction that completes this
 * one, so that there is always exactly one chain of regular polls.
 */
export async function followJob(deps: FollowDeps, job: ClaimedJob<FollowPayload>, signal: AbortSignal): Promise<void> {
  const { db, logger } = deps;
  const id = job.payload.job_id;
  const row = await db.selectFrom('fine_tuning_job').selectAll().where('id', '=', id).executeTakeFirst();
  if (!row || isTerminal(row.status) || row.provider_job_id === null) return;
  const { payload } = job;
  const next = { changed: false, misses: 0, failures: 0, postponed: payload.postponed, retryAfterMs: 0 };
  try {
    const provider = await deps.connect(row, signal);
    const before = await carryOut(deps, row, row.provider_job_id, provider);
    const seen = await pollJob(deps, before, row.provider_job_id, provider);
    const made = seen.checkpoints.map((one) => one.fine_tuned_model_checkpoint);
    if (seen.view?.fine_tuned_model) made.push(seen.view.fine_tuned_model);
    // The models are recorded before the job shows them, so that they can be used as soon as they are known.
    if (made.length > 0) await deps.recordModels(before, made);
    const poll = await withResults(deps, before, provider, seen, payload.postponed < postponedMax);
    if (poll.view === null && seen.view !== null) next.postponed += 1;
    const after = await recordPoll(deps, before, poll);
    next.changed = after.version > row.version;
    if (isTerminal(after.status)) {
      logger.info({ fine_tuning_job_id: id, status: after.status }, 'fine-tuning job ended');
      job.note?.(after.status);
      return;
    }
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    next.misses = error.kind === 'not_found' ? payload.misses + 1 : 0;
    if (next.misses >= missesMax || error.code === 'virtual_key_deleted') {
      await record(deps, row, [{ type: 'fail', error: toJobError(error) }]);
      return;
    }
    next.retryAfterMs = error.retryAfterMs ?? 0;
    logger.warn({ fine_tuning_job_id: id, code: error.code }, 'fine-tuning job could not be polled');
    job.note?.('provider_unavailable');
    next.failures = payload.failures + 1;
    if (payload.left === null && next.failures === failuresBeforeNote) {
      const note = makeLocalEvent(
        id,
        `lost-${row.version}`,
        `The provider cannot return the job at the moment: ${error.message}`,
      );
      await record(deps, row, [{ type: 'observe', view: null, events: [note], checkpoints: [] }]);
    }
  }
  await schedulePoll(deps, job, next);
}

/**
 * Sends a request to the provider and returns the job after that. A refusal ends the request and becomes an event of
 * the job. Throws errors that are worth a retry.
 */
async function carryOut(
  deps: FollowDeps,
  row: FineTuningJobRow,
  providerJobId: string,
  provider: TuningProvider,
): Promise<FineTuningJobRow> {
  const { requested } = row;
  if (requested === null) return row;
  let answer: FineTuningError | null = null;
  try {
    await provider.controlJob(providerJobId, requested);
  } catch (error) {
    if (!(error instanceof GatewayError) || isRetryable(error)) throw error;
    // The provider also refuses a request that a worker sent before it crashed, because the job is in that state already.
    const { status } = toView(await provider.retrieveJob(providerJobId), row.status);
    if (!isAsWished(requested, status)) answer = toJobError(error);
  }
  deps.logger.info(
    { fine_tuning_job_id: row.id, request: requested, refused: answer?.code },
    'fine-tuning request sent',
  );
  const message = `The provider refused to ${requested} the job: ${answer?.message}`;
  const note = answer && makeLocalEvent(row.id, `refused-${row.version}`, message);
  return await record(deps, row, [{ type: 'record_answer', request: requested, error: answer, note }]);
}

function isAsWished(requested: FineTuningControl, status: FineTuningStatus): boolean {
  if (requested === 'cancel') return status === 'cancelled';
  return requested === 'pause' ? status === 'paused' : status === 'queued' || status === 'running';
}

/**
 * Copies the result files of a job that has ended. A file that the provider refuses has the provider's ID instead. If a
 * file cannot be read now, the end is left for a later poll (`view` null) while `mayPostpone`.
 */
async function withResults(
  deps: FollowDeps,
  row: FineTuningJobRow,
  provider: TuningProvider,
  poll: Poll,
  mayPostpone: boolean,
): Promise<Found> {
  const { view } = poll;
  if (view === null) return { ...poll, results: [] };
  if (!isTerminal(view.status)) return { ...poll, view: { ...view, result_files: [] }, results: [] };
  const results: ResultFile[] = [];
  const ids: string[] = [];
  for (const [index, fileId] of view.result_files.entries()) {
    const filename = `${row.id}-results${index === 0 ? '' : `-${index + 1}`}.csv`;
    try {
      const content = await provider.readFile(fileId);
      const file = { id: newId('file-'), filename, blob: await deps.blobs.put(once(content)) };
      results.push(file);
      ids.push(file.id);
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      deps.logger.warn({ fine_tuning_job_id: row.id, code: error.code }, 'a result file could not be downloaded');
      const isPassing = isRetryable(error) && error.code !== 'upstream_response_too_large';
      if (mayPostpone && (isPassing || error.kind === 'storage_full')) {
        await removeBlobs(deps, results);
        return { ...poll, view: null, results: [] };
      }
      ids.push(fileId);
    }
  }
  return { ...poll, view: { ...view, result_files: ids }, results };
}

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes;
}

/**
 * Appends the findings of a poll that are not recorded yet. The state is part of the last append, and result files of
 * the end.
 */
async function recordPoll(
  deps: FollowDeps,
  row: FineTuningJobRow,
  { view, events, checkpoints, results }: Found,
): Promise<FineTuningJobRow> {
  // The files are part of the work on the job.
  const metadata = byWorker(row);
  const { id, workspace_id: workspaceId } = row;
  const rest = [...events];
  let { version } = row;
  for (;;) {
    const part = rest.splice(0, recordsPerTransaction);
    const last = rest.length === 0;
    const streams = [id, ...(last ? results.map((file) => file.id) : [])];
    const after = await deps.eventLog.transact({ workspaceId, streams, metadata }, async (unit) => {
      const before = (await unit.load(fineTuningJobModel, id)) as FineTuningJobRow;
      const [knownEvents, knownCheckpoints] = [
        await findRecorded(
          unit.tx,
          id,
          'event',
          part.map((event) => event.id),
        ),
        await findRecorded(unit.tx, id, 'checkpoint', last ? checkpoints.map((checkpoint) => checkpoint.id) : []),
      ];
      // If another worker has written since, the polled state can be older than the recorded one, unless it is an end.
      const current = before.version === version || (view !== null && isTerminal(view.status));
      const seen: FineTuningEvent[] = decideFineTuning(before, {
        type: 'observe',
        view: last && current ? view : null,
        events: part.filter((event) => !knownEvents.has(event.id)),
        checkpoints: last ? checkpoints.filter((checkpoint) => !knownCheckpoints.has(checkpoint.id)) : [],
      });
      const now = await unit.append(fineTuningJobModel, id, seen);
      const ends = isTerminal(now.status) && !isTerminal(before.status);
      if (ends) {
        for (const file of results) await deps.recordFile(unit, file.id, file);
        await deps.releaseTarget(unit, now.target);
      }
      return { row: now, ends };
    });
    version = after.row.version;
    if (!last && !isTerminal(after.row.status)) continue;
    // Another worker recorded the end. (After an error it is not known which one did, and the sweep removes these
    // blobs.)
    if (!after.ends) await removeBlobs(deps, results);
    return after.row;
  }
}

async function removeBlobs({ blobs }: FollowDeps, results: readonly ResultFile[]): Promise<void> {
  for (const { blob } of results) await blobs.remove(blob.blob);
}

type Pace = { changed: boolean; retryAfterMs: number };

async function schedulePoll(
  deps: FollowDeps,
  job: ClaimedJob<FollowPayload>,
  { changed, retryAfterMs, ...counts }: Pick<FollowPayload, 'misses' | 'failures' | 'postponed'> & Pace,
): Promise<void> {
  const { job_id, wait_ms, left } = job.payload;
  const { allowedMs, waitMs } = deps.nextWaitMs(wait_ms, changed);
  await deps.db.transaction().execute(async (tx) => {
    if (!(await deps.queue.complete(tx, followQueue, job))) return;
    if (left !== null && left <= 1) return;
    const next = { job_id, wait_ms: allowedMs, left: left === null ? null : left - 1, ...counts };
    await deps.queue.enqueue(tx, followQueue, next, { startAfter: await dueAfter(tx, Math.max(waitMs, retryAfterMs)) });
  });
}
