import type { PublicNames } from '#libs/contracts/configs/public-models.ts';
import type { ModelCaller } from '#libs/credentials/configs/public-models.ts';
import type { Request } from 'express';
import { z } from 'zod';
import type { Batches } from '#libs/batches/batch/batches.ts';
import { toOpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';
import {
  BatchDetail,
  BatchList,
  BatchListQuery,
  BatchObject,
  CreateBatchRequest,
  ResumeBatchRequest,
} from '#libs/contracts/batches/batches.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { atProvider, orAtProvider } from '../calls/or-at-provider.ts';
import type { RelayDeps } from '../calls/relay-call.ts';
import { sendFileContent, type FileContentDeps } from '../files/file-content.ts';
import {
  createBatch,
  exampleBatch,
  recordable,
  refuseOtherPurposes,
  withOptions,
  type CreateBatchDeps,
} from './create-batch.ts';
import { batchLineRoutes, type BatchLineDeps } from './line-routes.ts';
import { messageBatchRoutes, type MessageBatchDeps } from './message-batches.ts';
import { retryBatch, type RetryDeps } from './retry-batch.ts';
import { dryRun, type DryRunDeps } from '#libs/batches/look/dry-run.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import type { FileRow } from '#libs/files/file-model.ts';
import type { Routing } from '#libs/credentials/routing.ts';
import { BatchDryRun } from '#libs/contracts/batches/batch-dry-run.ts';
import { metadataText } from '#libs/contracts/scalars.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { requireScope } from '#libs/http/rights.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import { batchLimitErrors, targetErrors } from '../document-texts.ts';

export const batchTags = { Batches: 'Many calls in one file, run in the background.' };

type Deps = MessageBatchDeps &
  CreateBatchDeps &
  DryRunRouteDeps &
  RetryDeps &
  BatchLineDeps &
  RelayDeps &
  FileContentDeps;

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
  pauseBatch(deps),
  resumeBatch(deps),
  ...messageBatchRoutes(deps),
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
  description: `\`gateway\` shows the progress of a batch, and \`waits\` explains why it makes less than it could. ${atProvider}`,
  responses: { 200: { description: 'The batch.', schema: BatchDetail } },
  ...withInput({ params }, async (input, request, response) => {
    response.json(await batches.look(getCaller(request).workspaceId, input.params.batch_id));
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

const pauseBatch = ({ batches }: { batches: Batches }): Route => ({
  ...write,
  path: '/v1/batches/:batch_id/pause',
  operationId: 'pauseBatch',
  summary: 'Pause a batch; running calls can finish',
  description:
    'No further line is called until you resume the batch. The deadline does not move. Repeating the request has no effect. ' +
    'A batch that is not validating or in progress returns 409.',
  responses: { 200: { description: 'The batch. `paused_at` is null unless it is paused.', schema: BatchObject } },
  ...withInput({ params }, async (input, request, response) => {
    const batch = { workspaceId: getCaller(request).workspaceId, id: input.params.batch_id };
    response.json(toOpenAiBatch(await batches.control({ type: 'pause' }, batch, toEventMetadata(request))));
  }),
});

const resumeBatch = ({ batches }: { batches: Batches }): Route => ({
  ...write,
  path: '/v1/batches/:batch_id/resume',
  operationId: 'resumeBatch',
  summary: 'Resume a paused batch',
  description:
    'Repeating the request has no effect. A batch that was paused by a bound needs a higher one, or null to remove it. A ' +
    'batch that is not validating or in progress returns 409.',
  example: { max_cost: '20' },
  errors: { bound_reached: 'the batch has reached a bound that the request does not raise' },
  responses: { 200: { description: 'The batch. `paused_at` is null.', schema: BatchObject } },
  ...withInput({ params, body: ResumeBatchRequest.optional() }, async (input, request, response) => {
    const { params: path, body: given = {} } = input;
    const bounds = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
    const batch = { workspaceId: getCaller(request).workspaceId, id: path.batch_id };
    response.json(toOpenAiBatch(await batches.control({ type: 'resume', bounds }, batch, toEventMetadata(request))));
  }),
});

export type DryRunRouteDeps = DryRunDeps &
  CreateBatchDeps & {
    routing: Pick<Routing, 'planOf' | 'resolveLeaf'>;
    /** The public models that a caller can use. */
    publicNames: (caller: ModelCaller) => Promise<PublicNames>;
    /** Turns of requests that read a whole input file. */
    fileReads: Turns;
  };

/**
 * POST /v1/batches/dry-run: predicts the course of a batch with this body, without creating it. Everything that
 * creating it would refuse is refused here too. Errors: those of POST /v1/batches, and rate_limited
 * (`too_many_queries`).
 */
function dryRunBatch(deps: DryRunRouteDeps): Route {
  return {
    method: 'POST',
    path: '/v1/batches/dry-run',
    operationId: 'dryRunBatch',
    summary: 'Validate an input file and estimate the cost of a batch without creating it',
    description:
      'Reports validation errors, the target for each model, the estimated cost, and whether budgets suffice. No batch ' +
      'is created and no provider is called. Reading stops after 20 seconds; `is_whole` tells you whether the whole ' +
      'file was read.',
    example: exampleBatch,
    errors: {
      ...batchLimitErrors,
      ...targetErrors,
      too_many_queries: 'the workspace has one dry run or retry in progress and two waiting',
    },
    tag: 'Batches',
    scope: 'batches.write',
    responses: { 200: { description: 'What would happen.', schema: BatchDryRun } },
    ...withInput(
      { body: CreateBatchRequest, headers: ['metadata', ...credentialHeaders] },
      async ({ body }, request, response) => {
        const caller = getCaller(request);
        const { workspaceId } = caller;
        requireScope(caller, deps.scopeOf(body.endpoint));
        const file = await deps.files.find(workspaceId, body.input_file_id);
        refuseOtherPurposes(file);
        const { signal } = abortWhenClientLeaves(response);
        const run = () => predictBatch(deps, request, { body, file, signal });
        response.json(file === undefined ? await run() : await deps.fileReads.run(workspaceId, run, signal));
      },
    ),
  };
}

/** Predicts the course of a batch with this body and input file. Throws like POST /v1/batches. */
export async function predictBatch(
  deps: DryRunRouteDeps,
  request: Request,
  { body, file, signal }: { body: CreateBatchRequest; file: Pick<FileRow, 'blob'> | undefined; signal: AbortSignal },
): Promise<BatchDryRun> {
  const { workspaceId, keyId, defaults, principal } = getCaller(request);
  const { gateway_options: options } = body;
  const credentials = withOptions(readCredentials(request.headers), options);
  const { caller: credential, config } = await deps.batchTargets.choose({ workspaceId, credentials, defaults });
  const asking = { keyId, role: principal.role };
  const place = { workspaceId, credentials, headers: null, defaults, caller: asking };
  const publicNames = await deps.publicNames({ workspaceId, ...asking });
  const planFor = async (model: string | null) => await deps.routing.planOf({ ...place, model });
  const { metadata: inherited } = recordable(options, request);
  const metadata = asTexts({ ...body.metadata, ...inherited });
  const call = { workspaceId, keyId, credentials, planFor, metadata, signal };
  return await dryRun(deps, { request: body, file, credential, hasConfig: config !== null, publicNames, call });
}

const asTexts = (metadata: Record<string, unknown>): Record<string, string> =>
  Object.fromEntries(Object.entries(metadata).map(([name, value]) => [name, metadataText(value)]));
