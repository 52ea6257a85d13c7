import { z } from 'zod';
import { FineTuningJobObject } from '#libs/contracts/fine-tuning.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import { toOpenAiFineTuningJob } from '#libs/fine-tuning/to-openai-fine-tuning-job.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

const operations = [
  { control: 'cancel', operationId: 'cancelFineTuningJob', summary: 'Cancel a fine-tuning job' },
  { control: 'pause', operationId: 'pauseFineTuningJob', summary: 'Pause a running fine-tuning job' },
  { control: 'resume', operationId: 'resumeFineTuningJob', summary: 'Resume a paused fine-tuning job' },
] as const;

/**
 * POST /v1/fine_tuning/jobs/{fine_tuning_job_id}/cancel, /pause and /resume. The request is recorded here, and a worker
 * carries it out at the provider; the status changes when the provider has done it. A repeated request gets 200 again.
 * Errors: not_found, conflict.
 */
export function controlFineTuningJob({ fineTuningJobs }: { fineTuningJobs: FineTuningJobs }): Route[] {
  return operations.map(({ control, operationId, summary }) => ({
    method: 'POST',
    path: `/v1/fine_tuning/jobs/:fine_tuning_job_id/${control}`,
    operationId,
    summary,
    tag: 'Fine-tuning',
    scope: 'fine_tuning.write',
    responses: { 200: { description: 'The job in its current state.', schema: FineTuningJobObject } },
    ...withInput({ params: z.object({ fine_tuning_job_id: z.string() }) }, async ({ params }, request, response) => {
      const job = { workspaceId: callerOf(request).workspaceId, id: params.fine_tuning_job_id };
      response.json(toOpenAiFineTuningJob(await fineTuningJobs.control(control, job, eventMetadataOf(request))));
    }),
  }));
}
