import { z } from 'zod';
import { FineTuningCheckpointList, FineTuningCheckpointListQuery } from '#libs/contracts/fine-tuning.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import { toOpenAiCheckpoint } from '#libs/fine-tuning/to-openai-fine-tuning-job.ts';
import { toListResponse } from '#libs/http/list-response.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

const schemas = { params: z.object({ fine_tuning_job_id: z.string() }), query: FineTuningCheckpointListQuery };

/** GET /v1/fine_tuning/jobs/{fine_tuning_job_id}/checkpoints. Highest step first. Errors: not_found, invalid_request. */
export function listFineTuningCheckpoints({ fineTuningJobs }: { fineTuningJobs: FineTuningJobs }): Route {
  return {
    method: 'GET',
    path: '/v1/fine_tuning/jobs/:fine_tuning_job_id/checkpoints',
    operationId: 'listFineTuningCheckpoints',
    summary: 'List the checkpoints of a fine-tuning job, highest step first',
    tag: 'Fine-tuning',
    scope: 'fine_tuning.read',
    responses: { 200: { description: 'A page of checkpoints.', schema: FineTuningCheckpointList } },
    ...withInput(schemas, async ({ params, query: { after = null, limit } }, request, response) => {
      const { workspaceId } = callerOf(request);
      const jobId = params.fine_tuning_job_id;
      const { job, checkpoints } = await fineTuningJobs.listCheckpoints({ workspaceId, jobId, after, limit });
      response.json(
        toListResponse(
          checkpoints.map((checkpoint) => toOpenAiCheckpoint(job, checkpoint)),
          limit,
        ),
      );
    }),
  };
}
