import type { Request } from 'express';
import { z } from 'zod';
import type { Batches } from '#libs/batches/batches.ts';
import { toOpenAiBatch } from '#libs/batches/to-openai-batch.ts';
import { BatchDetail, BatchList, BatchListQuery, BatchObject } from '#libs/contracts/batches/batches.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { atProvider, orAtProvider } from '../calls/or-at-provider.ts';
import type { RelayDeps } from '../calls/relay-call.ts';
import { sendFileContent, type FileContentDeps } from '../files/file-content.ts';
import { createBatch, type CreateBatchDeps } from './create-batch.ts';
import { dryRunBatch, type DryRunRouteDeps } from './dry-run-batch.ts';
import { batchLineRoutes, type BatchLineDeps } from './line-routes.ts';
import { retryBatch, type RetryDeps } from './retry-batch.ts';

export const batchTags = { Batches: 'Many calls in one file, run in the background.' };

type Deps = CreateBatchDeps & DryRunRouteDeps & RetryDeps & BatchLineDeps & RelayDeps & FileContentDeps;

const read = { method: 'GET', tag: 'Batches', scope: 'batches.read' } as const;
const write = { method: 'POST', tag: 'Batches', scope: 'batches.write' } as const;
const params = z.object({ batch_id: z.string() });

export const batchRoutes = (deps: Deps): Route[] => [
  createBatch(deps),
  dryRunBatch(deps),
  listBatches(deps),
  ...batchLineRoutes(deps),
  retryBatch(deps),
  orAtProvider(deps, retrieveBatch(deps)),
  retrieveBatchOutput(deps),
  orAtProvider(deps, cancelBatch(deps)),
  controlBatch(deps, 'pause', {
    operationId: 'pauseBatch',
    summary: 'Pause a batch; running calls can finish',
    description:
      'No further line is called until you resume the batch. The deadline does not move. Repeating the request has no effect. ' +
      'A batch that is not validating or in progress returns 409.',
  }),
  controlBatch(deps, 'resume', {
    operationId: 'resumeBatch',
    summary: 'Resume a paused batch',
    description: 'Repeating the request has no effect. A batch that is not validating or in progress returns 409.',
  }),
];

const listBatches = ({ batches }: { batches: Batches }): Route => ({
  ...read,
  path: '/v1/batches',
  operationId: 'listBatches',
  summary: 'List batches, newest first',
  description: '`after` takes the ID of the last batch on the previous page. Counts of running batches are current.',
  responses: { 200: { description: 'A page of batches.', schema: BatchList } },
  ...withInput({ query: BatchListQuery }, async ({ query }, request, response) => {
    const { workspaceId } = getCaller(request);
    const page = await batches.list({ workspaceId, after: query.after ?? null, limit: query.limit });
    response.json(toListResponse(page.map(toOpenAiBatch), query.limit));
  }),
});

const retrieveBatch = ({ batches }: { batches: Batches }): Route => ({
  ...read,
  path: '/v1/batches/:batch_id',
  operationId: 'retrieveBatch',
  summary: 'Retrieve a batch',
  description: `\`waits\` explains why a batch makes less progress than it could. ${atProvider}`,
  responses: { 200: { description: 'The batch.', schema: BatchDetail } },
  ...withInput({ params }, async (input, request, response) => {
    const batch = await batches.retrieve(getCaller(request).workspaceId, input.params.batch_id);
    response.json({ ...toOpenAiBatch(batch), waits: await batches.waitsOf(batch) });
  }),
});

const retrieveBatchOutput = (deps: FileContentDeps & { batches: Batches }): Route => ({
  ...read,
  path: '/v1/batches/:batch_id/output',
  operationId: 'retrieveBatchOutput',
  summary: 'Download the output of a batch',
  description: 'Returns the same content as `GET /v1/files/{id}/content` with `output_file_id`.',
  errors: { no_output_file: 'the batch has not ended, or none of its lines succeeded' },
  responses: { 200: { description: 'The output file: JSON lines.', contentType: 'application/octet-stream' } },
  ...withInput({ params }, async (input, request, response) => {
    const { batch_id: batchId } = input.params;
    const { output_file_id: id, status } = await deps.batches.retrieve(getCaller(request).workspaceId, batchId);
    if (id === null) {
      const message = `The batch '${batchId}' has no output file; its status is ${status}.`;
      throw new GatewayError('not_found', 'no_output_file', message, { param: 'batch_id' });
    }
    await sendFileContent(deps, id, request, response);
  }),
});

const cancelBatch = ({ batches }: { batches: Batches }): Route => ({
  ...write,
  path: '/v1/batches/:batch_id/cancel',
  operationId: 'cancelBatch',
  summary: 'Cancel a batch; running calls can finish',
  description:
    'Completed results are kept; the remaining lines end as `batch_cancelled`. Repeating the request has no effect. ' +
    `A batch that has ended in another way returns 409. ${atProvider}`,
  responses: { 200: { description: 'The batch, with status `cancelling`.', schema: BatchObject } },
  ...withInput({ params }, async (input, request, response) => {
    const { workspaceId } = getCaller(request);
    response.json(toOpenAiBatch(await batches.cancel(workspaceId, input.params.batch_id, toEventMetadata(request))));
  }),
});

const controlBatch = (
  { batches }: { batches: Batches },
  control: 'pause' | 'resume',
  text: Pick<Route, 'operationId' | 'summary' | 'description'>,
): Route => ({
  ...write,
  path: `/v1/batches/:batch_id/${control}`,
  ...text,
  responses: { 200: { description: 'The batch. `paused_at` is null unless it is paused.', schema: BatchObject } },
  ...withInput({ params }, async (input, request: Request, response) => {
    const batch = { workspaceId: getCaller(request).workspaceId, id: input.params.batch_id };
    response.json(toOpenAiBatch(await batches.control(control, batch, toEventMetadata(request))));
  }),
});
