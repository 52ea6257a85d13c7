import { z } from 'zod';
import type { FineTuningStatus } from '#libs/database/schema.ts';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { FineTuningView, RecordedCheckpoint, RecordedFineTuningEvent } from './fine-tuning-job.ts';
import { makeRecordId } from './fine-tuning-records.ts';

// Answers of providers are read leniently: a member that is missing or of another type counts as null. Recorded texts
// and data are bounded and storable in jsonb.

const messageLengthMax = 4_000;
const dataCharsMax = 65_536;
const depthMax = 16;

const seconds = z.number().int().nonnegative().nullable().catch(null);
const anyObject = z.record(z.string(), z.unknown()).nullable().catch(null);
const name = z.string().min(1).max(500).nullable().catch(null);

const ProviderJob = z.object({
  id: z.string().min(1).max(500),
  status: z.string().catch(''),
  created_at: seconds,
  training_file: name,
  metadata: anyObject,
  method: anyObject,
  hyperparameters: anyObject,
  fine_tuned_model: name,
  trained_tokens: seconds,
  estimated_finish: seconds,
  finished_at: seconds,
  error: anyObject,
  result_files: z.array(z.string().min(1).max(500)).max(100).catch([]),
});
export type ProviderJob = z.output<typeof ProviderJob>;

const ProviderEvent = z.object({
  id: z.string().min(1).max(500),
  created_at: seconds,
  level: z.enum(['info', 'warn', 'error']).catch('info'),
  message: z.string().catch(''),
  type: z.enum(['message', 'metrics']).catch('message'),
  data: anyObject,
});

const ProviderCheckpoint = z.object({
  id: z.string().min(1).max(500),
  created_at: seconds,
  step_number: z.number().int(),
  fine_tuned_model_checkpoint: z.string().min(1).max(500),
  metrics: z.record(z.string(), z.unknown()).catch({}),
});

/** Returns null if the value is not a job. */
export function readProviderJob(value: unknown): ProviderJob | null {
  return ProviderJob.safeParse(value).data ?? null;
}

// OpenAI's own statuses, and those of compatible servers such as Azure.
const statuses: Readonly<Record<string, FineTuningStatus>> = {
  validating_files: 'validating_files',
  created: 'validating_files',
  pending: 'queued',
  queued: 'queued',
  running: 'running',
  paused: 'paused',
  succeeded: 'succeeded',
  failed: 'failed',
  cancelled: 'cancelled',
  canceled: 'cancelled',
};

/** An unknown status leaves `statusBefore` in place. `result_files` are still the provider's IDs. */
export function toView(job: ProviderJob, statusBefore: FineTuningStatus): FineTuningView {
  return {
    status: statuses[job.status.toLowerCase()] ?? statusBefore,
    method: cleanObject(job.method),
    hyperparameters: cleanObject(job.hyperparameters),
    fine_tuned_model: job.fine_tuned_model === null ? null : cleanText(job.fine_tuned_model, 500),
    trained_tokens: job.trained_tokens,
    estimated_finish: job.estimated_finish,
    finished_at: job.finished_at,
    error: toError(job.error),
    result_files: job.result_files.map((id) => cleanText(id, 500)),
  };
}

/** OpenAI answers `{}` when there is no error. */
function toError(error: Record<string, unknown> | null): FineTuningView['error'] {
  const text = (value: unknown, max: number): string | null =>
    typeof value === 'string' && value !== '' ? cleanText(value, max) : null;
  const code = text(error?.['code'], 200);
  const message = text(error?.['message'], messageLengthMax);
  if (code === null && message === null) return null;
  return {
    code: code ?? 'provider_error',
    message: scrub(message ?? `${code}`, [], messageLengthMax),
    param: text(error?.['param'], 200),
  };
}

/** Returns null if the value is not an event. `toOurs` replaces the provider's IDs in a text with ours. */
export function readProviderEvent(
  jobId: string,
  value: unknown,
  toOurs: (text: string) => string,
): RecordedFineTuningEvent | null {
  const event = ProviderEvent.safeParse(value).data;
  if (!event) return null;
  return {
    id: makeRecordId('ftevent-', jobId, event.id),
    provider_id: cleanText(event.id, 500),
    created_at: event.created_at ?? 0,
    level: event.level,
    message: toOurs(cleanText(scrub(event.message, [], messageLengthMax), messageLengthMax)),
    type: event.type,
    data: cleanObject(event.data),
  };
}

/** Returns null if the value is not a checkpoint. Metrics that are not numbers are left out. */
export function readProviderCheckpoint(jobId: string, value: unknown): RecordedCheckpoint | null {
  const checkpoint = ProviderCheckpoint.safeParse(value).data;
  if (!checkpoint) return null;
  const metrics = Object.entries(checkpoint.metrics).filter((entry): entry is [string, number] =>
    Number.isFinite(entry[1]),
  );
  return {
    id: makeRecordId('ftckpt_', jobId, checkpoint.id),
    provider_id: cleanText(checkpoint.id, 500),
    created_at: checkpoint.created_at ?? 0,
    step_number: checkpoint.step_number,
    fine_tuned_model_checkpoint: cleanText(checkpoint.fine_tuned_model_checkpoint, 500),
    metrics: Object.fromEntries(metrics.slice(0, 50).map(([key, metric]) => [cleanText(key, 200), metric])),
  };
}

/** Makes a text storable in jsonb: well-formed and without U+0000. */
function cleanText(text: string, lengthMax: number): string {
  return toStorableText(text.slice(0, lengthMax));
}

/** Returns null if the value is too large to record. */
function cleanObject(value: Record<string, unknown> | null): Record<string, unknown> | null {
  if (value === null || JSON.stringify(value).length > dataCharsMax) return null;
  return clean(value, 0) as Record<string, unknown>;
}

function clean(value: unknown, depth: number): unknown {
  if (typeof value === 'string') return cleanText(value, dataCharsMax);
  if (typeof value !== 'object' || value === null) return value;
  if (depth >= depthMax) return null;
  if (Array.isArray(value)) return value.map((item) => clean(item, depth + 1));
  return Object.fromEntries(
    Object.entries(value).map(([key, member]) => [cleanText(key, dataCharsMax), clean(member, depth + 1)]),
  );
}
