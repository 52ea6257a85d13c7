import { toUnixSeconds } from '#libs/kernel/clock.ts';
import type { RecordedCheckpoint, RecordedFineTuningEvent } from './fine-tuning-job.ts';
import type { FineTuningJobRow } from './fine-tuning-job-model.ts';

/**
 * The public object: every key is there, null where unset (openai-semantics.md 3). Times are Unix seconds. Files are
 * ours; the fine-tuned model is named as the provider names it.
 */
export function toOpenAiFineTuningJob(job: FineTuningJobRow) {
  const { request } = job;
  return {
    id: job.id,
    object: 'fine_tuning.job' as const,
    created_at: toUnixSeconds(job.created_at),
    error: job.error,
    estimated_finish: job.estimated_finish,
    fine_tuned_model: job.fine_tuned_model,
    finished_at: toUnixSeconds(job.finished_at),
    hyperparameters: job.hyperparameters,
    integrations: request.integrations ?? null,
    metadata: job.metadata,
    method: job.method,
    model: request.model,
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

export type OpenAiFineTuningJob = ReturnType<typeof toOpenAiFineTuningJob>;

export function toOpenAiFineTuningEvent({ id, created_at, level, message, type, data }: RecordedFineTuningEvent) {
  return { id, object: 'fine_tuning.job.event' as const, created_at, level, message, type, data };
}

export function toOpenAiCheckpoint(jobId: string, checkpoint: RecordedCheckpoint) {
  const { id, created_at, step_number, fine_tuned_model_checkpoint, metrics } = checkpoint;
  return {
    id,
    object: 'fine_tuning.job.checkpoint' as const,
    created_at,
    fine_tuned_model_checkpoint,
    fine_tuning_job_id: jobId,
    metrics,
    step_number,
  };
}
