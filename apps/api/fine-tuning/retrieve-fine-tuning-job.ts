import { z } from 'zod';
import { FineTuningJobObject } from '#libs/contracts/fine-tuning.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import { toOpenAiFineTuningJob } from '#libs/fine-tuning/to-openai-fine-tuning-job.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

/** GET /v1/fine_tuning/jobs/{fine_tuning_job_id}, even if the provider is unavailable. Errors: not_found. */
export function retrieveFineTuningJob({ fineTuningJobs }: { fineTuningJobs: FineTuningJobs }): Route {
  return {
    method: 'GET',
    path: '/v1/fine_tuning/jobs/:fine_tuning_job_id',
    operationId: 'retrieveFineTuningJob',
    summary: 'Retrieve a fine-tuning job',
    tag: 'Fine-tuning',
    scope: 'fine_tuning.read',
    responses: { 200: { description: 'The job.', schema: FineTuningJobObject } },
    ...withInput({ params: z.object({ fine_tuning_job_id: z.string() }) }, async ({ params }, request, response) => {
      const { workspaceId } = callerOf(request);
      response.json(toOpenAiFineTuningJob(await fineTuningJobs.retrieve(workspaceId, params.fine_tuning_job_id)));
    }),
  };
}
