import type { Selectable } from 'kysely';
import type { FineTuningJobTable, FineTuningRequest } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { assertNever } from '#libs/kernel/errors.ts';
import { isTerminal, type FineTuningEvent } from './fine-tuning-job.ts';

export type FineTuningJobRow = Selectable<FineTuningJobTable>;
type Columns = Omit<FineTuningJobRow, keyof StreamRow>;

/** The read model of GET /v1/fine_tuning/jobs, and the state on which commands are decided. */
export const fineTuningJobModel: InlineModel<FineTuningJobRow, FineTuningEvent> = {
  name: 'fine_tuning_job',
  jsonColumns: ['request', 'metadata', 'target', 'method', 'hyperparameters', 'result_files', 'error'],
  evolve,
};

function evolve(row: FineTuningJobRow | undefined, event: RecordedEvent<FineTuningEvent>): Columns {
  if (event.type === 'fine_tuning_job.created') return created(event);
  if (!row) throw new Error(`fine-tuning job ${event.streamId} begins with ${event.type}`);
  switch (event.type) {
    case 'fine_tuning_job.files_uploaded':
      return { ...row, ...event.data };
    case 'fine_tuning_job.provider_accepted':
      return { ...row, ...event.data, accepted_at: event.recordedAt };
    case 'fine_tuning_job.status_changed': {
      const { finished_at: finishedAt, method, hyperparameters, ...view } = event.data;
      const over = isTerminal(view.status);
      return {
        ...row,
        ...view,
        method: method ?? row.method,
        hyperparameters: hyperparameters ?? row.hyperparameters,
        requested: over ? null : row.requested,
        finished_at: over ? (finishedAt === null ? event.recordedAt : new Date(finishedAt * 1_000)) : null,
      };
    }
    // Read from the log itself: a job can have thousands, and each would rewrite the row.
    case 'fine_tuning_job.event_recorded':
    case 'fine_tuning_job.checkpoint_recorded':
      return row;
    case 'fine_tuning_job.cancel_requested':
      return { ...row, requested: 'cancel' };
    case 'fine_tuning_job.pause_requested':
      return { ...row, requested: 'pause' };
    case 'fine_tuning_job.resume_requested':
      return { ...row, requested: 'resume' };
    case 'fine_tuning_job.request_answered':
      return { ...row, requested: null };
    default:
      return assertNever(event);
  }
}

function created({
  data,
  recordedAt,
}: RecordedEvent<Extract<FineTuningEvent, { type: 'fine_tuning_job.created' }>>): Columns {
  const { method, hyperparameters } = asMethod(data.request);
  return {
    ...data,
    method,
    hyperparameters,
    status: 'validating_files',
    requested: null,
    provider_training_file_id: null,
    provider_validation_file_id: null,
    provider_job_id: null,
    fine_tuned_model: null,
    trained_tokens: null,
    estimated_finish: null,
    result_files: [],
    error: null,
    created_at: recordedAt,
    accepted_at: null,
    finished_at: null,
  };
}

const automatic = { batch_size: 'auto', learning_rate_multiplier: 'auto', n_epochs: 'auto' };

/** Shown until the provider reports its own: the requested values, and `auto` for the rest (TUNE-1). */
function asMethod(request: FineTuningRequest) {
  const type = typeof request.method?.['type'] === 'string' ? request.method['type'] : 'supervised';
  const given = request.method?.[type] as { hyperparameters?: Record<string, unknown> | null } | null | undefined;
  const hyperparameters = {
    ...automatic,
    ...withoutNulls(request.hyperparameters),
    ...withoutNulls(given?.hyperparameters),
  };
  return { method: { type, [type]: { ...given, hyperparameters } }, hyperparameters };
}

/** The members that are not null. A member that is null counts as absent here, although the provider gets it as sent. */
const withoutNulls = (members: Record<string, unknown> | null | undefined): Record<string, unknown> =>
  Object.fromEntries(Object.entries(members ?? {}).filter(([, value]) => value !== null));
