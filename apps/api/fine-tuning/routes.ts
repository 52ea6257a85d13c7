import { z } from 'zod';
import {
  FineTuningCheckpointList,
  FineTuningCheckpointListQuery,
  FineTuningEventList,
  FineTuningEventListQuery,
  FineTuningJobList,
  FineTuningJobListQuery,
  FineTuningJobObject,
} from '#libs/contracts/batches/fine-tuning.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import {
  toOpenAiCheckpoint,
  toOpenAiFineTuningEvent,
  toOpenAiFineTuningJob,
} from '#libs/fine-tuning/to-openai-fine-tuning-job.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { atProvider, orAtProvider } from '../calls/or-at-provider.ts';
import type { RelayDeps } from '../calls/relay-call.ts';
import { createFineTuningJob, type CreateJobDeps } from './create-fine-tuning-job.ts';

export const fineTuningTags = { 'Fine-tuning': 'Fine-tuning jobs at providers.' };

type Jobs = { fineTuningJobs: FineTuningJobs };

const read = { method: 'GET', tag: 'Fine-tuning', scope: 'fine_tuning.read' } as const;
const params = z.object({ fine_tuning_job_id: z.string() });
const errors = { fine_tune_not_found: 'the workspace has no such job' };
const sentByWorker = 'A worker sends the request to the provider.';

export const fineTuningRoutes = (deps: CreateJobDeps & RelayDeps): Route[] => [
  createFineTuningJob(deps),
  listFineTuningJobs(deps),
  ...[
    retrieveFineTuningJob(deps),
    controlFineTuningJob(deps, 'cancel', {
      operationId: 'cancelFineTuningJob',
      summary: 'Cancel a fine-tuning job',
      description: `${sentByWorker} Repeating the request has no effect. A job that has ended in another way returns 409. ${atProvider}`,
    }),
    controlFineTuningJob(deps, 'pause', {
      operationId: 'pauseFineTuningJob',
      summary: 'Pause a running fine-tuning job',
      description: `${sentByWorker} If the provider refuses, the events of the job say so. A job that is not queued or running returns 409. ${atProvider}`,
    }),
    controlFineTuningJob(deps, 'resume', {
      operationId: 'resumeFineTuningJob',
      summary: 'Resume a paused fine-tuning job',
      description: `${sentByWorker} If the provider refuses, the events of the job say so. A job that is not paused returns 409. ${atProvider}`,
    }),
    listFineTuningEvents(deps),
    listFineTuningCheckpoints(deps),
  ].map((route) => orAtProvider(deps, route)),
];

const listFineTuningJobs = ({ fineTuningJobs }: Jobs): Route => ({
  ...read,
  path: '/v1/fine_tuning/jobs',
  operationId: 'listFineTuningJobs',
  summary: 'List fine-tuning jobs, newest first',
  description:
    'Lists the jobs created through Sluice at all providers. You can filter by `metadata[key]=value`. `after` takes the ID ' +
    'of the last job on the previous page.',
  responses: { 200: { description: 'A page of jobs.', schema: FineTuningJobList } },
  ...withInput({ query: FineTuningJobListQuery }, async ({ query }, request, response) => {
    const { workspaceId } = getCaller(request);
    const { after = null, limit, metadata } = query;
    const page = await fineTuningJobs.list({ workspaceId, after, limit, metadata });
    const data = page.slice(0, limit).map(toOpenAiFineTuningJob);
    response.json({ object: 'list', data, has_more: page.length > limit });
  }),
});

const retrieveFineTuningJob = ({ fineTuningJobs }: Jobs): Route => ({
  ...read,
  path: '/v1/fine_tuning/jobs/:fine_tuning_job_id',
  operationId: 'retrieveFineTuningJob',
  summary: 'Retrieve a fine-tuning job',
  description: `Returns the job as last reported by its provider. A worker polls the provider while the job runs. ${atProvider}`,
  errors,
  responses: { 200: { description: 'The job.', schema: FineTuningJobObject } },
  ...withInput({ params }, async (input, request, response) => {
    const job = await fineTuningJobs.retrieve(getCaller(request).workspaceId, input.params.fine_tuning_job_id);
    response.json(toOpenAiFineTuningJob(job));
  }),
});

/** The request is recorded here, and a worker sends it to the provider; the status changes when the provider has acted. */
const controlFineTuningJob = (
  { fineTuningJobs }: Jobs,
  control: 'cancel' | 'pause' | 'resume',
  text: Pick<Route, 'operationId' | 'summary' | 'description'>,
): Route => ({
  method: 'POST',
  path: `/v1/fine_tuning/jobs/:fine_tuning_job_id/${control}`,
  ...text,
  errors,
  tag: 'Fine-tuning',
  scope: 'fine_tuning.write',
  responses: { 200: { description: 'The job in its current state.', schema: FineTuningJobObject } },
  ...withInput({ params }, async (input, request, response) => {
    const job = { workspaceId: getCaller(request).workspaceId, id: input.params.fine_tuning_job_id };
    response.json(toOpenAiFineTuningJob(await fineTuningJobs.control(control, job, toEventMetadata(request))));
  }),
});

const listFineTuningEvents = ({ fineTuningJobs }: Jobs): Route => ({
  ...read,
  path: '/v1/fine_tuning/jobs/:fine_tuning_job_id/events',
  operationId: 'listFineTuningEvents',
  summary: 'List the events of a fine-tuning job, newest first',
  description:
    'Events are copied from the provider while the job runs, so they stay available after the provider deletes them.',
  errors,
  responses: { 200: { description: 'A page of events.', schema: FineTuningEventList } },
  ...withInput({ params, query: FineTuningEventListQuery }, async (input, request, response) => {
    const { after = null, limit } = input.query;
    const jobId = input.params.fine_tuning_job_id;
    const page = { workspaceId: getCaller(request).workspaceId, jobId, after, limit };
    const { job, events } = await fineTuningJobs.listEvents(page);
    const data = events.slice(0, limit).map((event) => toOpenAiFineTuningEvent(job, event));
    response.json({ object: 'list', data, has_more: events.length > limit });
  }),
});

const listFineTuningCheckpoints = ({ fineTuningJobs }: Jobs): Route => ({
  ...read,
  path: '/v1/fine_tuning/jobs/:fine_tuning_job_id/checkpoints',
  operationId: 'listFineTuningCheckpoints',
  summary: 'List the checkpoints of a fine-tuning job, highest step first',
  description: 'Returns the models saved during training that you can use, if the provider offers them.',
  errors,
  responses: { 200: { description: 'A page of checkpoints.', schema: FineTuningCheckpointList } },
  ...withInput({ params, query: FineTuningCheckpointListQuery }, async (input, request, response) => {
    const { after = null, limit } = input.query;
    const jobId = input.params.fine_tuning_job_id;
    const page = { workspaceId: getCaller(request).workspaceId, jobId, after, limit };
    const { job, checkpoints } = await fineTuningJobs.listCheckpoints(page);
    response.json(
      toListResponse(
        checkpoints.map((checkpoint) => toOpenAiCheckpoint(job, checkpoint)),
        limit,
      ),
    );
  }),
});
