import { randomBytes } from 'node:crypto';
import type { Clock } from '#libs/kernel/clock.ts';
import { createRandom, hashText } from '../model/hash.ts';
import type { FileStore, StoredFile } from './file-store.ts';
import { advance, say, type Job } from './job.ts';
import { chooseHyperparameters, planTraining, stepCount, type Hyperparameters } from './plan-training.ts';
import { readTrainingData, type TuningMethod } from './training-data.ts';

export type JobRequest = {
  model: string;
  suffix: string | undefined;
  method: TuningMethod;
  hyperparameters: Partial<Record<keyof Hyperparameters, number | 'auto' | undefined>>;
  training: StoredFile;
  validation: StoredFile | undefined;
  seed: number | undefined;
  integrations: unknown;
  metadata: unknown;
  totalMs: number;
};

// Beyond this number, the oldest jobs are removed.
const jobsMax = 1_000;

export type JobStore = ReturnType<typeof createJobStore>;

/** Fine-tuning jobs of one simulator, in memory. A job is updated whenever it is read. */
export function createJobStore({ clock, files }: { clock: Clock; files: FileStore }) {
  const jobs = new Map<string, Job>();
  const resultFiles = new Map<string, string>();

  const onSuccess = (job: Job): void => {
    // The real service encodes its CSV a second time.
    const bytes = Buffer.from(Buffer.from(metricsTable(job)).toString('base64'));
    resultFiles.set(job.id, files.add({ bytes, filename: 'step_metrics.csv', purpose: 'fine-tune-results' }).id);
  };
  const upToDate = (job: Job): Job => {
    advance(job, clock.now(), onSuccess);
    return job;
  };
  return {
    create(request: JobRequest): Job {
      const job = jobOf(request, clock.now());
      jobs.set(job.id, job);
      if (jobs.size > jobsMax) {
        const [oldest] = jobs.keys();
        jobs.delete(oldest ?? '');
        resultFiles.delete(oldest ?? '');
      }
      return job;
    },
    find(id: string): Job | undefined {
      const job = jobs.get(id);
      return job === undefined ? undefined : upToDate(job);
    },
    /** Sorted by age, newest first. */
    list: (): Job[] => [...jobs.values()].map((job) => upToDate(job)).reverse(),
    resultFileOf: (job: Job): string | undefined => resultFiles.get(job.id),
  };
}

function jobOf(request: JobRequest, nowMs: number): Job {
  const { model, suffix, method, training, validation, totalMs } = request;
  const data = readTrainingData(training.bytes, method);
  const examples = 'flaw' in data ? 0 : data.examples;
  const hyperparameters = chooseHyperparameters(request.hyperparameters, examples);
  const hash = hashText(
    `${model}\n${suffix ?? ''}\n${request.seed ?? ''}\n${JSON.stringify(request.hyperparameters)}\n${Buffer.from(training.bytes).toString('latin1')}`,
  );
  const plan = planTraining({
    hash,
    model,
    data,
    validation: validation === undefined ? undefined : readTrainingData(validation.bytes, method),
    hyperparameters,
    totalMs,
  });
  const id = `ftjob-${randomBytes(12).toString('hex')}`;
  const job: Job = {
    id,
    key: hashText(id),
    model,
    suffix,
    createdAtMs: nowMs,
    totalMs,
    hyperparameters,
    stepsTotal: stepCount(hyperparameters, examples),
    trainedTokens: 'flaw' in data ? 0 : data.tokens * hyperparameters.n_epochs,
    fixed: {
      training_file: training.id,
      validation_file: validation?.id ?? null,
      seed: request.seed ?? Math.floor(createRandom(hash)() * 2_147_483_647),
      integrations: request.integrations ?? [],
      metadata: request.metadata ?? null,
      user_provided_suffix: suffix ?? null,
      given: request.hyperparameters,
      method,
    },
    plan,
    planned: 0,
    workMs: 0,
    resumedAtMs: nowMs,
    status: 'validating_files',
    finishedAtMs: undefined,
    error: undefined,
    fineTunedModel: undefined,
    events: [],
    checkpoints: [],
  };
  say(job, nowMs, `Created fine-tuning job: ${job.id}`);
  const second = validation === undefined ? '' : ` and validation file: ${validation.id}`;
  say(job, nowMs, `Validating training file: ${training.id}${second}`);
  return job;
}

function metricsTable(job: Job): string {
  const rows = job.plan.flatMap((step) => (step.type === 'trained' ? [step.metrics] : []));
  const lines = rows.map(({ step, train_loss, train_mean_token_accuracy, valid_loss, valid_mean_token_accuracy }) =>
    [step, train_loss, train_mean_token_accuracy, valid_loss, valid_mean_token_accuracy].join(','),
  );
  return ['step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy', ...lines, ''].join('\n');
}
