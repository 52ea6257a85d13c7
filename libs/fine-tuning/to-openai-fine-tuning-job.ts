import { toUnixSeconds } from '#libs/kernel/clock.ts';
import type { RecordedCheckpoint, RecordedFineTuningEvent } from './fine-tuning-job.ts';
import type { FineTuningJobRow } from './fine-tuning-job-model.ts';

/**
 * The public object: every key is present, null where unset (TUNE-1). Times are Unix seconds. File IDs are ours, and
 * the fine-tuned model has the name that calls and batches here use.
 */
export function toOpenAiFineTuningJob(job: FineTuningJobRow) {
  const { request } = job;
  return {
    id: job.id,
    object: 'fine_tuning.job' as const,
    created_at: toUnixSeconds(job.created_at),
    error: job.error,
    estimated_finish: job.estimated_finish,
    fine_tuned_model: job.fine_tuned_model === null ? null : nameHere(job, job.fine_tuned_model),
    finished_at: toUnixSeconds(job.finished_at),
    hyperparameters: job.hyperparameters,
    integrations: request.integrations ?? null,
    metadata: job.metadata,
    method: job.method,
    model: request.sent_model ?? request.model,
    organization_id: job.workspace_id,
    result_files: job.result_files,
    seed: request.seed,
    status: job.status,
    trained_tokens: job.trained_tokens,
    training_file: job.training_file_id,
    user_provided_suffix: request.suffix ?? null,
    validation_file: job.validation_file_id,
  };
}

/**
 * The name that calls use for a model of the provider. Without a virtual key, each call must bring the caller's own
 * key.
 */
function nameHere({ request }: FineTuningJobRow, model: string): string {
  return request.virtual_key === undefined ? model : `@${request.virtual_key}/${model}`;
}

export type OpenAiFineTuningJob = ReturnType<typeof toOpenAiFineTuningJob>;

/** Providers name the model in event texts. It is replaced by its name here, because people copy it. */
export function toOpenAiFineTuningEvent(job: FineTuningJobRow, event: RecordedFineTuningEvent) {
  const { id, created_at, level, type, data } = event;
  const { fine_tuned_model: model } = job;
  const message = model === null ? event.message : event.message.replaceAll(model, () => nameHere(job, model));
  return { id, object: 'fine_tuning.job.event' as const, created_at, level, message, type, data };
}

export function toOpenAiCheckpoint(job: FineTuningJobRow, checkpoint: RecordedCheckpoint) {
  const { id, created_at, step_number, fine_tuned_model_checkpoint, metrics } = checkpoint;
  return {
    id,
    object: 'fine_tuning.job.checkpoint' as const,
    created_at,
    fine_tuned_model_checkpoint: nameHere(job, fine_tuned_model_checkpoint),
    fine_tuning_job_id: job.id,
    metrics,
    step_number,
  };
}
