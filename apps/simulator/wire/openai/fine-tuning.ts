import { cancel, hasEnded, pause, resume, type Checkpoint, type Job, type JobEvent } from '../../tuning/job.ts';
import type { FileStore, StoredFile } from '../../tuning/file-store.ts';
import type { JobRequest, JobStore } from '../../tuning/job-store.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Received, Route } from '../wire-format.ts';
import { action, notFound } from './action.ts';
import { missing, refuse } from './checks.ts';
import { pageOf } from './page.ts';
import { z } from 'zod';
import { parseLatency } from '../../faults/latency.ts';
import { readTraits } from '../../read-traits.ts';
import { checkShape, type Flaw } from '../check-shape.ts';

export type Tuning = { files: FileStore; jobs: JobStore; clock: Clock; trainingMs: number };

const jobPages = { limitDefault: 20, limitMax: 100 };
const eventPages = { limitDefault: 20, limitMax: 1_000 };
const checkpointPages = { limitDefault: 10, limitMax: 1_000 };

/** /v1/fine_tuning/jobs: create and list; for one job: retrieve, cancel, pause, resume, events and checkpoints. */
export function findTuningRoute(tuning: Tuning, method: string, path: string): Route | undefined {
  const prefix = '/v1/fine_tuning/jobs';
  if (path === prefix) {
    if (method === 'POST') {
      return { name: `POST ${prefix}`, reads: 'json', call: (received) => createJob(tuning, received) };
    }
    if (method !== 'GET') return { name: 'other', allow: 'GET, POST' };
    return {
      name: `GET ${prefix}`,
      reads: 'anything',
      call: (received) => action(received, '', () => listJobs(tuning, received)),
    };
  }
  if (!path.startsWith(`${prefix}/`)) return undefined;
  const [id = '', part = '', ...rest] = path.slice(prefix.length + 1).split('/');
  const act = rest.length > 0 ? undefined : acts[`${method} ${part}`];
  if (act === undefined) return undefined;
  const name = `${method} ${prefix}/{id}${part === '' ? '' : `/${part}`}`;
  const find = (): Job => tuning.jobs.find(id) ?? notFound(`Could not find fine tune: ${id}`, 'fine_tune_id');
  return {
    name,
    reads: 'anything',
    call: (received) => action(received, find().model, () => act(find(), tuning, received)),
  };
}

type Act = (job: Job, tuning: Tuning, received: Received) => unknown;

const acts: Record<string, Act> = {
  'GET ': jobObject,
  'GET events': (job, _, { query }) => {
    const { page, hasMore } = pageOf([...job.events].reverse(), query, eventPages);
    return { object: 'list', data: page.map((event) => eventObject(event)), has_more: hasMore };
  },
  'GET checkpoints': (job, _, { query }) => {
    const { page, hasMore } = pageOf([...job.checkpoints].reverse(), query, checkpointPages);
    const data = page.map((checkpoint) => checkpointObject(checkpoint, job));
    return { object: 'list', data, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null, has_more: hasMore };
  },
  'POST cancel': (job, tuning) => {
    if (hasEnded(job)) refuseStatus('cancel', job);
    cancel(job, tuning.clock.now());
    return jobObject(job, tuning);
  },
  'POST pause': (job, tuning) => {
    if (job.status !== 'running') refuseStatus('pause', job);
    pause(job, tuning.clock.now());
    return jobObject(job, tuning);
  },
  'POST resume': (job, tuning) => {
    if (job.status !== 'paused') refuseStatus('resume', job);
    resume(job, tuning.clock.now());
    return jobObject(job, tuning);
  },
};

function createJob(tuning: Tuning, received: Received) {
  const request = readJobRequest(received, tuning.files, tuning.trainingMs);
  return action(received, request.model, () => jobObject(tuning.jobs.create(request), tuning));
}

/** `metadata[key]=value` filters, all of which must match; `metadata=null` finds jobs without metadata. */
function listJobs({ jobs, ...tuning }: Tuning, { query }: Received) {
  const filters = [...new URLSearchParams(query)].filter(([name]) => name.startsWith('metadata'));
  const matching = jobs.list().filter(({ fixed }) => {
    const metadata = fixed['metadata'] as Record<string, string> | null;
    return filters.every(([name, value]) =>
      name === 'metadata' ? metadata === null : metadata?.[name.slice('metadata['.length, -1)] === value,
    );
  });
  const { page, hasMore } = pageOf(matching, query, jobPages);
  return { object: 'list', data: page.map((job) => jobObject(job, { jobs, ...tuning })), has_more: hasMore };
}

function refuseStatus(verb: string, { id, status }: Job): never {
  return refuse(`Cannot ${verb} job ${id} with status '${status}'.`, null, null);
}

function jobObject(job: Job, { jobs }: Tuning) {
  const { given, method, ...fixed } = job.fixed;
  const waiting = job.status === 'validating_files' || job.error?.code.startsWith('invalid_') === true;
  const hyperparameters = waiting
    ? { n_epochs: 'auto', batch_size: 'auto', learning_rate_multiplier: 'auto', ...(given as object) }
    : { ...(given as object), ...job.hyperparameters };
  const running = job.status === 'running' && job.resumedAtMs !== undefined;
  const resultFile = jobs.resultFileOf(job);
  return {
    object: 'fine_tuning.job',
    id: job.id,
    model: job.model,
    created_at: seconds(job.createdAtMs),
    finished_at: job.finishedAtMs === undefined ? null : seconds(job.finishedAtMs),
    fine_tuned_model: job.fineTunedModel ?? null,
    organization_id: 'org-sluice-simulator',
    result_files: resultFile === undefined ? [] : [resultFile],
    status: job.status,
    ...fixed,
    hyperparameters,
    trained_tokens: job.status === 'succeeded' ? job.trainedTokens : null,
    error: job.error ?? null,
    estimated_finish: running ? seconds((job.resumedAtMs ?? 0) + job.totalMs - job.workMs) : null,
    method: { type: method, [String(method)]: { hyperparameters } },
  };
}

function eventObject({ id, atMs, level, type, message, data }: JobEvent) {
  return { object: 'fine_tuning.job.event', id, created_at: seconds(atMs), level, message, type, data: data ?? {} };
}

function checkpointObject({ id, atMs, model, step, metrics }: Checkpoint, job: Job) {
  return {
    object: 'fine_tuning.job.checkpoint',
    id,
    created_at: seconds(atMs),
    fine_tuned_model_checkpoint: model,
    fine_tuning_job_id: job.id,
    metrics,
    step_number: step,
  };
}

function seconds(ms: number): number {
  return Math.floor(ms / 1_000);
}

const auto = z.literal('auto');
const hyperparameters = z.strictObject({
  n_epochs: z.union([auto, z.int().min(1).max(50)]).optional(),
  batch_size: z.union([auto, z.int().min(1).max(256)]).optional(),
  learning_rate_multiplier: z.union([auto, z.number().positive()]).optional(),
});
const settings = <Own extends z.ZodRawShape>(own: Own) =>
  z.looseObject({ hyperparameters: hyperparameters.extend(own).optional() }).optional();
const method = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('supervised'), supervised: settings({}) }),
  z.strictObject({
    type: z.literal('dpo'),
    dpo: settings({ beta: z.union([auto, z.number().positive().max(2)]).optional() }),
  }),
  z.strictObject({ type: z.literal('reinforcement'), reinforcement: z.looseObject({}) }),
]);
const integration = z.looseObject({ type: z.literal('wandb'), wandb: z.looseObject({ project: z.string() }) });
const request = z.strictObject({
  model: z.string().min(1),
  training_file: z.string().min(1),
  validation_file: z.string().nullish(),
  suffix: z.string().min(1).max(64).nullish(),
  seed: z.int().min(0).max(2_147_483_647).nullish(),
  method: method.nullish(),
  hyperparameters: hyperparameters.nullish(),
  integrations: z.array(integration).max(5).nullish(),
  metadata: z.record(z.string().max(64), z.string().max(512)).nullish(),
});

/**
 * Checks the body of POST /v1/fine_tuning/jobs; throws Refusal with OpenAI's wording. The duration of the job comes from the
 * model's name (`+training:2s`), the header x-simulator-training or the simulator's own setting, in this order.
 */
function readJobRequest({ json, headers }: Received, files: FileStore, defaultMs: number): JobRequest {
  const body = checkShape(request, json, refuseFlaw);
  const header = headers['x-simulator-training'];
  const given = header === undefined ? undefined : parseLatency(String(header));
  if (header !== undefined && given?.type !== 'fixed') {
    refuse('x-simulator-training must be a duration such as 500ms or 2s.', null, 'invalid_value');
  }
  const headerMs = given?.type === 'fixed' ? given.ms : undefined;
  return {
    model: body.model,
    suffix: body.suffix ?? undefined,
    ...readMethod(body),
    training: findFile(files, body.training_file, 'training_file'),
    validation:
      typeof body.validation_file === 'string' ? findFile(files, body.validation_file, 'validation_file') : undefined,
    seed: body.seed ?? undefined,
    integrations: body.integrations,
    metadata: body.metadata,
    totalMs: readTraits(body.model).trainingMs ?? headerMs ?? defaultMs,
  };
}

function readMethod(body: z.output<typeof request>): Pick<JobRequest, 'method' | 'hyperparameters'> {
  const { method: chosen } = body;
  const fallback = body.hyperparameters ?? {};
  switch (chosen?.type) {
    case 'dpo':
      return { method: 'dpo', hyperparameters: chosen.dpo?.hyperparameters ?? fallback };
    case 'reinforcement':
      return { method: 'reinforcement', hyperparameters: fallback };
    case 'supervised':
    case undefined:
      return { method: 'supervised', hyperparameters: chosen?.supervised?.hyperparameters ?? fallback };
  }
}

function findFile(files: FileStore, id: string, param: string): StoredFile {
  const file = files.find(id) ?? refuse(`invalid ${param}: ${id}`, param, null);
  if (file.purpose === 'fine-tune') return file;
  return refuse(`File '${id}' has purpose '${file.purpose}'; expected 'fine-tune'.`, param, null);
}

function refuseFlaw({ kind, path, message }: Flaw): never {
  const param = path.join('.');
  if (kind === 'missing') return missing(param);
  if (kind === 'unknown') return refuse(`Unrecognized request argument supplied: ${param}`, param, 'unknown_parameter');
  return refuse(`Invalid value for '${param}': ${message}.`, param, 'invalid_value');
}
