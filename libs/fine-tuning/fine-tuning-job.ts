import type { BatchTarget, FineTuningError, FineTuningRequest, FineTuningStatus } from '#libs/database/schema.ts';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** The requests that a user can make for a job. */
export type FineTuningControl = 'cancel' | 'pause' | 'resume';

/** A job as its provider last showed it. `finished_at` and `estimated_finish` are Unix seconds. */
export type FineTuningView = {
  status: FineTuningStatus;
  method: Record<string, unknown> | null;
  hyperparameters: Record<string, unknown> | null;
  fine_tuned_model: string | null;
  trained_tokens: number | null;
  estimated_finish: number | null;
  finished_at: number | null;
  error: FineTuningError | null;
  result_files: string[];
};

/**
 * An event of the provider, or one of our own about a problem between the job and its provider. `id` is ours and derived
 * from the provider's, so that a repeated event has the same id.
 */
export type RecordedFineTuningEvent = {
  id: string;
  provider_id: string | null;
  /** Unix seconds. */
  created_at: number;
  level: 'info' | 'warn' | 'error';
  message: string;
  type: 'message' | 'metrics';
  data: Record<string, unknown> | null;
};

export type RecordedCheckpoint = {
  id: string;
  provider_id: string;
  created_at: number;
  step_number: number;
  fine_tuned_model_checkpoint: string;
  metrics: Record<string, number>;
};

type NoData = Record<string, never>;

// These shapes are stored in the event log and must stay readable: a change needs a new schema version with an upcast.
export type FineTuningEvent =
  | {
      type: 'fine_tuning_job.created';
      data: {
        request: FineTuningRequest;
        training_file_id: string;
        validation_file_id: string | null;
        metadata: Record<string, string> | null;
        target: BatchTarget;
      };
    }
  /** After this event, a create call may have reached the provider. */
  | {
      type: 'fine_tuning_job.files_uploaded';
      data: { provider_training_file_id: string; provider_validation_file_id: string | null };
    }
  | { type: 'fine_tuning_job.provider_accepted'; data: { provider_job_id: string } }
  | { type: 'fine_tuning_job.status_changed'; data: FineTuningView }
  | { type: 'fine_tuning_job.event_recorded'; data: RecordedFineTuningEvent }
  | { type: 'fine_tuning_job.checkpoint_recorded'; data: RecordedCheckpoint }
  | { type: 'fine_tuning_job.cancel_requested'; data: NoData }
  | { type: 'fine_tuning_job.pause_requested'; data: NoData }
  | { type: 'fine_tuning_job.resume_requested'; data: NoData }
  /** The provider's answer to a request; `error` if it refused. */
  | { type: 'fine_tuning_job.request_answered'; data: { request: FineTuningControl; error: FineTuningError | null } };

/** The state on which decisions are based. The read-model row has all of it. */
export type FineTuningState = Omit<FineTuningView, 'finished_at' | 'method' | 'hyperparameters'> & {
  method: Record<string, unknown>;
  hyperparameters: Record<string, unknown>;
  requested: FineTuningControl | null;
  provider_training_file_id: string | null;
  provider_job_id: string | null;
};

export type FineTuningCommand =
  | { type: 'record_upload'; trainingFileId: string; validationFileId: string | null }
  | { type: 'accept'; providerJobId: string }
  /** The provider rejected the job, or it can no longer be followed. */
  | { type: 'fail'; error: FineTuningError }
  /** The job was cancelled, and it is certain that the provider does not have it. */
  | { type: 'withdraw' }
  | { type: FineTuningControl }
  | {
      type: 'record_answer';
      request: FineTuningControl;
      error: FineTuningError | null;
      /** An event that explains the refusal to users. */
      note: RecordedFineTuningEvent | null;
    }
  /**
   * The result of a poll: events and checkpoints not recorded yet, oldest first. `view` is null if some earlier ones
   * are missing.
   */
  | {
      type: 'observe';
      view: FineTuningView | null;
      events: readonly RecordedFineTuningEvent[];
      checkpoints: readonly RecordedCheckpoint[];
    };

export function isTerminal(status: FineTuningStatus): boolean {
  return status === 'succeeded' || status === 'failed' || status === 'cancelled';
}

/**
 * Returns the events that a command causes. Pure. Empty when there is nothing to change, or when the command came too late
 * (another worker was faster, the job has ended). Throws GatewayError `conflict` when refused.
 */
export function decideFineTuning(job: FineTuningState, command: FineTuningCommand): FineTuningEvent[] {
  switch (command.type) {
    case 'record_upload':
      if (isTerminal(job.status) || job.provider_training_file_id !== null) return [];
      return [
        {
          type: 'fine_tuning_job.files_uploaded',
          data: {
            provider_training_file_id: command.trainingFileId,
            provider_validation_file_id: command.validationFileId,
          },
        },
      ];
    case 'accept':
      if (isTerminal(job.status) || job.provider_job_id !== null) return [];
      return [{ type: 'fine_tuning_job.provider_accepted', data: { provider_job_id: command.providerJobId } }];
    case 'fail':
      if (isTerminal(job.status)) return [];
      // A cancelled job that no provider ever had ends as cancelled.
      if (job.requested === 'cancel' && job.provider_job_id === null) return [ended(job, 'cancelled', null)];
      return [ended(job, 'failed', command.error)];
    case 'withdraw':
      if (isTerminal(job.status) || job.requested !== 'cancel' || job.provider_job_id !== null) return [];
      return [ended(job, 'cancelled', null)];
    case 'cancel':
      return decideCancel(job);
    case 'pause':
      return decidePause(job);
    case 'resume':
      return decideResume(job);
    case 'record_answer': {
      const { request, error, note } = command;
      if (isTerminal(job.status) || job.requested !== request) return [];
      const answered: FineTuningEvent = { type: 'fine_tuning_job.request_answered', data: { request, error } };
      return note ? [answered, { type: 'fine_tuning_job.event_recorded', data: note }] : [answered];
    }
    case 'observe':
      return decideObserve(job, command);
  }
}

function decideCancel(job: FineTuningState): FineTuningEvent[] {
  if (job.status === 'cancelled' || job.requested === 'cancel') return [];
  if (isTerminal(job.status)) throw cannot('cancel', job);
  const requested: FineTuningEvent = { type: 'fine_tuning_job.cancel_requested', data: {} };
  // No create call was ever sent, and none will be, because `record_upload` has no effect from now on.
  if (job.provider_training_file_id === null) return [requested, ended(job, 'cancelled', null)];
  return [requested];
}

function decidePause(job: FineTuningState): FineTuningEvent[] {
  if (job.requested === 'cancel') throw cannot('pause', job);
  if (job.requested === 'pause' || (job.status === 'paused' && job.requested === null)) return [];
  // A `queued` job can already be `running` at the provider. If not, the provider refuses.
  const possible = job.status === 'running' || job.status === 'queued' || job.requested === 'resume';
  if (!possible) throw cannot('pause', job);
  return [{ type: 'fine_tuning_job.pause_requested', data: {} }];
}

function decideResume(job: FineTuningState): FineTuningEvent[] {
  if (job.requested === 'cancel') throw cannot('resume', job);
  if (job.requested === 'resume') return [];
  if (job.status !== 'paused' && job.requested !== 'pause') throw cannot('resume', job);
  return [{ type: 'fine_tuning_job.resume_requested', data: {} }];
}

function cannot(control: FineTuningControl, { status, requested }: FineTuningState): GatewayError {
  const state = requested === 'cancel' && !isTerminal(status) ? 'is being cancelled' : `has the status '${status}'`;
  return new GatewayError('conflict', null, `Cannot ${control} a fine-tuning job that ${state}.`);
}

function decideObserve(
  job: FineTuningState,
  { view, events, checkpoints }: Extract<FineTuningCommand, { type: 'observe' }>,
): FineTuningEvent[] {
  // No event is added after the end, so that a client that has read up to the end has read everything.
  if (isTerminal(job.status)) return [];
  const seen: FineTuningEvent[] = [
    ...events.map((data) => ({ type: 'fine_tuning_job.event_recorded' as const, data })),
    ...checkpoints.map((data) => ({ type: 'fine_tuning_job.checkpoint_recorded' as const, data })),
  ];
  if (view && differs(job, view)) seen.push({ type: 'fine_tuning_job.status_changed', data: view });
  return seen;
}

const viewedMembers = ['fine_tuned_model', 'trained_tokens', 'error', 'result_files'] as const;
/** Smaller changes of an estimate are not recorded, because it changes with every poll. */
const estimateDriftSeconds = 60;

function differs(job: FineTuningState, view: FineTuningView): boolean {
  if (job.status !== view.status) return true;
  if (view.method !== null && !isSame(job.method, view.method)) return true;
  if (view.hyperparameters !== null && !isSame(job.hyperparameters, view.hyperparameters)) return true;
  const [before, now] = [job.estimated_finish, view.estimated_finish];
  if (before === null || now === null ? before !== now : Math.abs(before - now) >= estimateDriftSeconds) return true;
  return viewedMembers.some((name) => !isSame(job[name], view[name]));
}

/** Equal as JSON, in any order of members, because jsonb does not preserve the order. */
const isSame = (a: unknown, b: unknown): boolean => canonicalJson(a) === canonicalJson(b);

function ended(
  job: FineTuningState,
  status: 'failed' | 'cancelled',
  error: FineTuningError | null,
): Extract<FineTuningEvent, { type: 'fine_tuning_job.status_changed' }> {
  const { method, hyperparameters, fine_tuned_model, trained_tokens, result_files } = job;
  return {
    type: 'fine_tuning_job.status_changed',
    data: {
      status,
      method,
      hyperparameters,
      fine_tuned_model,
      trained_tokens,
      estimated_finish: null,
      finished_at: null,
      error,
      result_files,
    },
  };
}
