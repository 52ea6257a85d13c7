import { FineTuningJobList, FineTuningJobListQuery } from '#libs/contracts/fine-tuning.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import { toOpenAiFineTuningJob } from '#libs/fine-tuning/to-openai-fine-tuning-job.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

/** GET /v1/fine_tuning/jobs. Newest first. Errors: invalid_request (limit, cursor, metadata). */
export function listFineTuningJobs({ fineTuningJobs }: { fineTuningJobs: FineTuningJobs }): Route {
  return {
    method: 'GET',
    path: '/v1/fine_tuning/jobs',
    operationId: 'listFineTuningJobs',
    summary: 'List fine-tuning jobs, newest first; can be filtered by metadata[key]=value',
    tag: 'Fine-tuning',
    scope: 'fine_tuning.read',
    responses: { 200: { description: 'A page of jobs.', schema: FineTuningJobList } },
    ...withInput({ query: FineTuningJobListQuery }, async ({ query }, request, response) => {
      const { workspaceId } = callerOf(request);
      const { after = null, limit, metadata } = query;
      const page = await fineTuningJobs.list({ workspaceId, after, limit, metadata });
      const data = page.slice(0, limit).map(toOpenAiFineTuningJob);
      response.json({ object: 'list', data, has_more: page.length > limit });
    }),
  };
}
