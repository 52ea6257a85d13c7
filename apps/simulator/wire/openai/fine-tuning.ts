import { cancel, hasEnded, pause, resume, type Checkpoint, type Job, type JobEvent } from '../../tuning/job.ts';
import type { FileStore } from '../../tuning/file-store.ts';
import type { JobStore } from '../../tuning/job-store.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Received, Route } from '../wire-format.ts';
import { action, notFound } from './action.ts';
import { refuse } from './checks.ts';
import { readJobRequest } from './fine-tuning-request.ts';
import { pageOf } from './page.ts';

export type Tuning = { files: FileStore; jobs: JobStore; clock: Clock; trainingMs: number };

const jobPages = { limitDefault: 20, limitMax: 100 };
const eventPages = { limitDefault: 20, limitMax: 1_000 };
const checkpointPages = { limitDefault: 10, limitMax: 1_000 };

/** /v1/fine_tuning/jobs: create and list; of one: retrieve, cancel, pause, resume, events and checkpoints. */
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

/** `metadata[key]=value` filters, all of which must match; `metadata=null` finds jobs without any. */
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
