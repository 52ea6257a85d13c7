import { createRandom } from '../model/hash.ts';
import type { TrainingData } from './training-data.ts';

export type Hyperparameters = { n_epochs: number; batch_size: number; learning_rate_multiplier: number };
export type Metrics = Record<string, number>;

/** One step of the training, `atMs` of training time after the start of the job; pauses do not count. */
export type Step = { atMs: number } & (
  | { type: 'validated' }
  | { type: 'started' }
  | { type: 'trained'; step: number; metrics: Metrics }
  | { type: 'checkpoint'; step: number; metrics: Metrics }
  | { type: 'succeeded' }
  | { type: 'failed'; error: { code: string; message: string; param: string | null } }
);

type Question = {
  hash: number;
  model: string;
  data: TrainingData;
  validation: TrainingData | undefined;
  hyperparameters: Hyperparameters;
  totalMs: number;
};

// The ends of the phases, as fractions of the duration.
const validatedAt = 0.1;
const startedAt = 0.2;
// A large file has more steps than are useful. At most this many of them report their loss.
const metricsMax = 100;

/** Plans all steps of a job, in order. Pure: the same job always has the same steps. */
export function planTraining(question: Question): Step[] {
  const { data, validation, totalMs } = question;
  if ('flaw' in data) return [invalidFile(data.flaw, 'training_file', totalMs)];
  if (validation !== undefined && 'flaw' in validation) {
    return [invalidFile(validation.flaw, 'validation_file', totalMs)];
  }
  const begin: Step[] = [
    { type: 'validated', atMs: validatedAt * totalMs },
    { type: 'started', atMs: startedAt * totalMs },
  ];
  if (!/^sim-tune-fail\b/.test(nameOf(question.model))) {
    return [...begin, ...trainingSteps(question, data.examples), { type: 'succeeded', atMs: totalMs }];
  }
  const failsAt = 0.6 * totalMs;
  const error = { code: 'server_error', message: 'The job failed due to an internal error.', param: null };
  const before = trainingSteps(question, data.examples).filter(({ atMs }) => atMs < failsAt);
  return [...begin, ...before, { type: 'failed', atMs: failsAt, error }];
}

/** The given hyperparameters, with `auto` replaced by the value that the service uses for this number of examples. */
export function chooseHyperparameters(
  given: Partial<Record<keyof Hyperparameters, number | 'auto' | undefined>>,
  examples: number,
): Hyperparameters {
  const chosen = (value: number | 'auto' | undefined, automatic: number): number =>
    typeof value === 'number' ? value : automatic;
  return {
    n_epochs: chosen(given.n_epochs, 3),
    batch_size: chosen(given.batch_size, Math.max(1, Math.min(256, Math.round(examples / 100)))),
    learning_rate_multiplier: chosen(given.learning_rate_multiplier, 2),
  };
}

export function stepCount({ n_epochs, batch_size }: Hyperparameters, examples: number): number {
  return Math.ceil(examples / batch_size) * n_epochs;
}

/** The name of the model without prefix and options. */
function nameOf(model: string): string {
  return model.slice(model.lastIndexOf('/') + 1);
}

function invalidFile(flaw: string, param: string, totalMs: number): Step {
  const kind = param === 'training_file' ? 'training' : 'validation';
  const message = `The job failed due to an invalid ${kind} file. ${flaw}`;
  return { type: 'failed', atMs: validatedAt * totalMs, error: { code: `invalid_${param}`, message, param } };
}

function trainingSteps(question: Question, examples: number): Step[] {
  const { hyperparameters, hash, totalMs, validation } = question;
  const steps = stepCount(hyperparameters, examples);
  const stepsPerEpoch = steps / hyperparameters.n_epochs;
  const every = Math.ceil(steps / metricsMax);
  const random = createRandom(hash);
  const curve = { start: 1.6 + random(), floor: 0.05 + random() * 0.3, gap: 0.02 + random() * 0.1 };
  const planned: Step[] = [];
  for (let step = 1; step <= steps; step++) {
    const endsEpoch = step % stepsPerEpoch === 0;
    if (step % every !== 0 && step !== 1 && !endsEpoch) continue;
    const atMs = (startedAt + (0.99 - startedAt) * (step / steps)) * totalMs;
    const metrics = metricsAt(step, step / steps, curve, validation !== undefined, endsEpoch);
    planned.push({ type: 'trained', atMs, step, metrics });
    if (endsEpoch) planned.push({ type: 'checkpoint', atMs, step, metrics });
  }
  return planned;
}

type Curve = { start: number; floor: number; gap: number };

/** The loss falls with every reported step. */
function metricsAt(step: number, progress: number, curve: Curve, validated: boolean, endsEpoch: boolean): Metrics {
  const loss = curve.floor + (curve.start - curve.floor) * Math.exp(-4 * progress);
  const accuracy = 1 - loss / (curve.start + 1);
  const metrics: Metrics = { step, train_loss: round(loss), train_mean_token_accuracy: round(accuracy) };
  if (!validated) return metrics;
  const valid = { valid_loss: round(loss + curve.gap), valid_mean_token_accuracy: round(accuracy - curve.gap / 4) };
  const full = { full_valid_loss: valid.valid_loss, full_valid_mean_token_accuracy: valid.valid_mean_token_accuracy };
  return endsEpoch ? { ...metrics, ...valid, ...full } : { ...metrics, ...valid };
}

function round(value: number): number {
  return Math.round(value * 1e5) / 1e5;
}
