import { hexOf, mixHash } from '../model/hash.ts';
import type { Hyperparameters, Metrics, Step } from './plan-training.ts';

export type JobStatus = 'validating_files' | 'queued' | 'running' | 'paused' | 'succeeded' | 'failed' | 'cancelled';
export type JobEvent = {
  id: string;
  atMs: number;
  level: 'info' | 'warn' | 'error';
  type: 'message' | 'metrics';
  message: string;
  data: Record<string, unknown> | null;
};
export type Checkpoint = { id: string; atMs: number; model: string; step: number; metrics: Metrics };
export type JobError = { code: string; message: string; param: string | null };

/** One fine-tuning job. It progresses only when it is read: `advance` applies everything that is due. */
export type Job = {
  id: string;
  /** The ID's hash, from which the IDs of events, checkpoints and the model are derived. */
  key: number;
  model: string;
  suffix: string | undefined;
  createdAtMs: number;
  totalMs: number;
  hyperparameters: Hyperparameters;
  stepsTotal: number;
  trainedTokens: number;
  /** The members of the answer that never change. */
  fixed: Record<string, unknown>;
  plan: readonly Step[];
  planned: number;
  /** Training continues from `workMs` at `resumedAtMs`; it is paused while that is undefined. */
  workMs: number;
  resumedAtMs: number | undefined;
  status: JobStatus;
  finishedAtMs: number | undefined;
  error: JobError | undefined;
  fineTunedModel: string | undefined;
  events: JobEvent[];
  checkpoints: Checkpoint[];
};

// The fraction of a job's duration for which it waits in the queue again after a resume.
const queuedAgain = 0.05;
const ended: readonly JobStatus[] = ['succeeded', 'failed', 'cancelled'];

export function hasEnded(job: Job): boolean {
  return ended.includes(job.status);
}

/** Applies everything that is due at `nowMs`; calls `onSuccess` once when the job succeeds. */
export function advance(job: Job, nowMs: number, onSuccess: (job: Job) => void): void {
  if (job.resumedAtMs === undefined || hasEnded(job)) return;
  const workMs = job.workMs + Math.max(0, nowMs - job.resumedAtMs);
  for (let step = job.plan[job.planned]; step !== undefined && step.atMs <= workMs; step = job.plan[job.planned]) {
    const atMs = job.resumedAtMs + Math.max(0, step.atMs - job.workMs);
    job.planned++;
    happen(job, step, atMs);
    if (step.type === 'succeeded') onSuccess(job);
  }
  // A resumed job waits in the queue until its time has come.
  if (job.status === 'queued' && nowMs >= job.resumedAtMs && isStarted(job)) job.status = 'running';
}

export function cancel(job: Job, nowMs: number): void {
  job.status = 'cancelled';
  job.finishedAtMs = nowMs;
  say(job, nowMs, 'Fine-tuning job cancelled');
}

export function pause(job: Job, nowMs: number): void {
  job.workMs += Math.max(0, nowMs - (job.resumedAtMs ?? nowMs));
  job.resumedAtMs = undefined;
  job.status = 'paused';
  say(job, nowMs, 'Fine-tuning job paused');
}

export function resume(job: Job, nowMs: number): void {
  job.resumedAtMs = nowMs + queuedAgain * job.totalMs;
  job.status = 'queued';
  say(job, nowMs, 'Fine-tuning job resumed');
}

/** Adds an event; its ID is derived from the job and the event's number. */
export function say(
  job: Job,
  atMs: number,
  message: string,
  { level = 'info', data = null }: { level?: JobEvent['level']; data?: Record<string, unknown> | null } = {},
): void {
  const id = `ftevent-${hexOf(mixHash(job.key, job.events.length), 24)}`;
  job.events.push({ id, atMs, level, type: data === null ? 'message' : 'metrics', message, data });
}

function isStarted(job: Job): boolean {
  return job.plan.slice(0, job.planned).some(({ type }) => type === 'started');
}

function happen(job: Job, step: Step, atMs: number): void {
  switch (step.type) {
    case 'validated':
      job.status = 'queued';
      return say(job, atMs, 'Files validated, moving job to queued state');
    case 'started':
      job.status = 'running';
      return say(job, atMs, 'Fine-tuning job started');
    case 'trained': {
      const { train_loss, valid_loss } = step.metrics;
      const validation = valid_loss === undefined ? '' : `, validation loss=${valid_loss.toFixed(2)}`;
      const loss = `training loss=${(train_loss ?? 0).toFixed(2)}${validation}`;
      const data = { ...step.metrics, total_steps: job.stepsTotal };
      return say(job, atMs, `Step ${step.step}/${job.stepsTotal}: ${loss}`, { data });
    }
    case 'checkpoint': {
      const id = `ftckpt_${hexOf(mixHash(job.key, 1_000_000 + step.step), 24)}`;
      const model = `${tunedName(job)}:ckpt-step-${step.step}`;
      job.checkpoints.push({ id, atMs, model, step: step.step, metrics: step.metrics });
      return say(job, atMs, `Checkpoint created at step ${step.step}`);
    }
    case 'succeeded':
      job.status = 'succeeded';
      job.finishedAtMs = atMs;
      job.fineTunedModel = tunedName(job);
      say(job, atMs, `New fine-tuned model created: ${job.fineTunedModel}`);
      return say(job, atMs, 'The job has successfully completed');
    case 'failed':
      job.status = 'failed';
      job.finishedAtMs = atMs;
      job.error = step.error;
      return say(job, atMs, step.error.message, { level: 'error' });
  }
}

function tunedName({ model, suffix, key }: Job): string {
  return `ft:${model}:sluice-simulator:${suffix ?? ''}:${hexOf(key, 8)}`;
}
