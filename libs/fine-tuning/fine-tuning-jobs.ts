import { sql, type Kysely } from 'kysely';
import type { BatchTarget, Database, FineTuningRequest } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import {
  decideFineTuning,
  isTerminal,
  type FineTuningControl,
  type RecordedCheckpoint,
  type RecordedFineTuningEvent,
} from './fine-tuning-job.ts';
import { fineTuningJobModel, type FineTuningJobRow } from './fine-tuning-job-model.ts';
import { firstPoll, firstStart, followQueue, startQueue } from './fine-tuning-queues.ts';
import { listRecordedCheckpoints, listRecordedEvents } from './fine-tuning-records.ts';
import { toOpenAiFineTuningJob, type OpenAiFineTuningJob } from './to-openai-fine-tuning-job.ts';

export type NewFineTuningJob = {
  request: FineTuningRequest;
  trainingFileId: string;
  validationFileId: string | null;
  metadata: Record<string, string> | null;
  /**
   * Turns the credentials of the create call into a target that the job can use until it ends. Stores a secret if
   * necessary.
   */
  target: (unit: UnitOfWork, jobId: string) => Promise<BatchTarget>;
};

type JobPage = { workspaceId: string; jobId: string; after: string | null; limit: number };

export type FineTuningJobs = {
  /** Creates a job. A worker creates it at the provider. */
  create(
    identity: CallIdentity,
    metadata: EventMetadata,
    job: NewFineTuningJob,
  ): Promise<{ job: OpenAiFineTuningJob; replayed: boolean }>;
  /** Newest first, one more than `limit` if there are more. `metadata`: pairs that a job must have; `none` for no metadata. */
  list(query: {
    workspaceId: string;
    after: string | null;
    limit: number;
    metadata: Record<string, string> | 'none' | null;
  }): Promise<FineTuningJobRow[]>;
  /** Throws `not_found` for an unknown job or one of another workspace. */
  retrieve(workspaceId: string, id: string): Promise<FineTuningJobRow>;
  /**
   * Records the request. A worker sends it to the provider, and the status changes when the provider's does. Requesting
   * twice succeeds twice. Throws `not_found` like `retrieve`, `conflict` when the state does not allow it.
   */
  control(
    control: FineTuningControl,
    job: { workspaceId: string; id: string },
    metadata: EventMetadata,
  ): Promise<FineTuningJobRow>;
  /** The recorded events, newest first, and the job. Throws `not_found` like `retrieve`, invalid_request for an unknown cursor. */
  listEvents(page: JobPage): Promise<{ job: FineTuningJobRow; events: RecordedFineTuningEvent[] }>;
  /** The recorded checkpoints, highest step first, and the job. Throws like `listEvents`. */
  listCheckpoints(page: JobPage): Promise<{ job: FineTuningJobRow; checkpoints: RecordedCheckpoint[] }>;
};

/** Extra polls after a request, because the regular ones can be a minute apart. */
const pollsAfterRequest = 6;

export function createFineTuningJobs(deps: {
  db: Kysely<Database>;
  eventLog: EventLog;
  queue: JobQueue;
  releaseTarget: (unit: UnitOfWork, target: BatchTarget) => Promise<void>;
}): FineTuningJobs {
  const { db, eventLog, queue } = deps;

  const find = (workspaceId: string, id: string): Promise<FineTuningJobRow | undefined> =>
    db
      .selectFrom('fine_tuning_job')
      .selectAll()
      .where('id', '=', id)
      .where('workspace_id', '=', workspaceId)
      .executeTakeFirst();

  const retrieve: FineTuningJobs['retrieve'] = async (workspaceId, id) => {
    const job = await find(workspaceId, id);
    if (!job) throw noSuchJob(id);
    return job;
  };

  return {
    retrieve,
    async create(identity, metadata, job) {
      const id = newId('ftjob-');
      const work = { ...metadata, correlation_id: id };
      const command = { workspaceId: identity.workspaceId, streams: [id], metadata: work };
      const result = await transactOnce(eventLog, identity, command, async (unit) => {
        const row = await unit.append(fineTuningJobModel, id, [
          {
            type: 'fine_tuning_job.created',
            data: {
              request: job.request,
              training_file_id: job.trainingFileId,
              validation_file_id: job.validationFileId,
              metadata: job.metadata,
              target: await job.target(unit, id),
            },
          },
        ]);
        await queue.enqueue(unit.tx, startQueue, firstStart(id));
        return { status: 200, body: toOpenAiFineTuningJob(row) };
      });
      return { job: result.body, replayed: result.replayed };
    },
    async list({ workspaceId, after, limit, metadata }) {
      let query = db
        .selectFrom('fine_tuning_job')
        .selectAll()
        .where('workspace_id', '=', workspaceId)
        .orderBy('created_at', 'desc')
        .orderBy('id', 'desc')
        .limit(limit + 1);
      if (metadata === 'none') query = query.where('metadata', 'is', null);
      else if (metadata !== null) query = query.where(sql<boolean>`metadata @> ${JSON.stringify(metadata)}::jsonb`);
      if (after !== null) {
        const cursor = await find(workspaceId, after);
        if (!cursor) throw unknownCursor(after);
        query = query.where((of) => of(of.refTuple('created_at', 'id'), '<', of.tuple(cursor.created_at, cursor.id)));
      }
      return await query.execute();
    },
    async control(control, { workspaceId, id }, metadata) {
      return await eventLog.transact(
        { workspaceId, streams: [id], metadata: { ...metadata, correlation_id: id } },
        async (unit) => {
          const before = await unit.load(fineTuningJobModel, id);
          if (!before || before.workspace_id !== workspaceId) throw noSuchJob(id);
          const events = decideFineTuning(before, { type: control });
          const after = await unit.append(fineTuningJobModel, id, events);
          if (events.length === 0) return after;
          if (isTerminal(after.status)) await deps.releaseTarget(unit, after.target);
          else if (after.provider_job_id !== null) {
            await queue.enqueue(unit.tx, followQueue, firstPoll(id, pollsAfterRequest));
          }
          return after;
        },
      );
    },
    async listEvents({ workspaceId, jobId, ...page }) {
      const job = await retrieve(workspaceId, jobId);
      return { job, events: await listRecordedEvents(db, jobId, page) };
    },
    async listCheckpoints({ workspaceId, jobId, ...page }) {
      const job = await retrieve(workspaceId, jobId);
      return { job, checkpoints: await listRecordedCheckpoints(db, jobId, page) };
    },
  };
}

/** OpenAI's text. A job of another workspace gets the same error. */
function noSuchJob(id: string): GatewayError {
  return new GatewayError('not_found', 'fine_tune_not_found', `Could not find fine tune: ${id}`, {
    param: 'fine_tuning_job_id',
  });
}

function unknownCursor(after: string): GatewayError {
  const message = `There is no fine-tuning job '${after}'. Set 'after' to the ID of the last job on the previous page.`;
  return new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}
