import { z } from 'zod';
import { FineTuningEventList, FineTuningEventListQuery } from '#libs/contracts/fine-tuning.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import { toOpenAiFineTuningEvent } from '#libs/fine-tuning/to-openai-fine-tuning-job.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

const schemas = { params: z.object({ fine_tuning_job_id: z.string() }), query: FineTuningEventListQuery };

/** GET /v1/fine_tuning/jobs/{fine_tuning_job_id}/events. Newest first. Errors: not_found, invalid_request (limit, cursor). */
export function listFineTuningEvents({ fineTuningJobs }: { fineTuningJobs: FineTuningJobs }): Route {
  return {
    method: 'GET',
    path: '/v1/fine_tuning/jobs/:fine_tuning_job_id/events',
    operationId: 'listFineTuningEvents',
    summary: 'List the events of a fine-tuning job, newest first',
    tag: 'Fine-tuning',
    scope: 'fine_tuning.read',
    responses: { 200: { description: 'A page of events.', schema: FineTuningEventList } },
    ...withInput(schemas, async ({ params, query: { after = null, limit } }, request, response) => {
      const { workspaceId } = callerOf(request);
      const page = { workspaceId, jobId: params.fine_tuning_job_id, after, limit };
      const { job, events } = await fineTuningJobs.listEvents(page);
      const data = events.slice(0, limit).map((event) => toOpenAiFineTuningEvent(job, event));
      response.json({ object: 'list', data, has_more: events.length > limit });
    }),
  };
}
