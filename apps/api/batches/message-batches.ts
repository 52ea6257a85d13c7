import { PassThrough } from 'node:stream';
import type { Request } from 'express';
import { z } from 'zod';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import { toMessageBatch, toMessageResult, toRefusedResult } from '#libs/batches/look/message-batch.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import {
  DeletedMessageBatch,
  MessageBatch,
  MessageBatchList,
  MessageBatchListQuery,
  MessageBatchRequest,
} from '#libs/contracts/batches/message-batches.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import { fingerprintBody } from '#libs/event-log/idempotency.ts';
import type { FileRow } from '#libs/files/file-model.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { sendPieces } from '#libs/http/answers/send-pieces.ts';
import { readElements } from '#libs/http/bodies/array-elements.ts';
import { clientDisconnected, refuseCompressed } from '#libs/http/bodies/json-body.ts';
import { watchUploadRate, type UploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import { memberValue, memberValues } from '#libs/kernel/json/json-members.ts';
import type { MemoryBudget, MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import { defaultLimits } from '#libs/validation/validation.ts';
import { readAllLines } from '#libs/validation/json-lines.ts';
import { withoutLineBreaks } from '#libs/batches/results/result-line.ts';
import { batchLimitErrors, repeatErrors, storageErrors, targetErrors } from '../document-texts.ts';
import type { FileContentDeps } from '../files/file-content.ts';
import { removeUnlessRecorded } from '../files/upload-file.ts';
import { inheritedFrom, recordable, type CreateBatchDeps } from './create-batch.ts';

export type MessageBatchDeps = CreateBatchDeps &
  FileContentDeps & {
    uploadBytesMax: number;
    uploadRate: UploadRate;
    admitUpload: (workspaceId: string) => Promise<void>;
    baseUrl: () => string;
    memory: MemoryBudget;
    /** Turns of streams of results. */
    resultStreams: Turns;
  };

const endpoint = '/v1/messages';
/** How often a request or a result is in memory: its pieces, itself, and what it becomes. */
const copies = 3;
const totalMs = 3_600_000;
const example = {
  requests: [
    {
      custom_id: 'request-1',
      params: {
        model: '@anthropic/claude-sonnet-4-5',
        max_tokens: 100,
        messages: [{ role: 'user', content: 'Why is the sky blue?' }],
      },
    },
  ],
};

const read = { method: 'GET', tag: 'Messages', scope: 'batches.read' } as const;
const params = z.object({ batch_id: z.string() });

/** Anthropic's Message Batches: the batches of `/v1/batches` whose lines are messages, in Anthropic's form. */
export const messageBatchRoutes = (deps: MessageBatchDeps): Route[] => [
  createMessageBatch(deps),
  listMessageBatches(deps),
  retrieveMessageBatch(deps),
  cancelMessageBatch(deps),
  deleteMessageBatch(deps),
  retrieveMessageBatchResults(deps),
];

function createMessageBatch(deps: MessageBatchDeps): Route {
  const { batches, files, blobs, batchTargets, scopeOf, uploadBytesMax, uploadRate, admitUpload, memory } = deps;
  return {
    method: 'POST',
    path: '/v1/messages/batches',
    operationId: 'createMessageBatch',
    summary: "Create a batch of messages in Anthropic's format",
    description:
      'The requests are stored as the input file of a batch, which is also at `/v1/batches/{id}`. The body can be as large as ' +
      '`SLUICE_UPLOAD_MAX`. Each request can name another model of any provider.',
    example,
    errors: { ...storageErrors, ...batchLimitErrors, ...targetErrors, ...repeatErrors },
    tag: 'Messages',
    scope: 'batches.write',
    request: {
      body: 'relayed',
      bodySchema: MessageBatchRequest,
      query: 'relayed',
      headers: ['metadata', ...credentialHeaders],
    },
    responses: { 200: { description: 'The batch.', schema: MessageBatch } },
    handler: async (request, response) => {
      const caller = getCaller(request);
      const { workspaceId, defaults } = caller;
      requireScope(caller, scopeOf(endpoint));
      const credential = await batchTargets.choose({
        workspaceId,
        credentials: readCredentials(request.headers),
        defaults,
      });
      checkContentType(request);
      await admitUpload(workspaceId);
      if (request.headers.expect !== undefined) response.writeContinue();
      const lease = memory.open(workspaceId);
      getContext(request).memory = lease;
      const onKept = (bytes: number): void => (bytes < 0 ? lease.give(-copies * bytes) : lease.charge(copies * bytes));
      const limits = { sizeBytesMax: uploadBytesMax, rate: uploadRate, onKept };
      const blob = await storeRequests(request, blobs, limits);
      await removeUnlessRecorded(blobs, blob.blob, async () => {
        const fileId = newId('file-');
        const file = { purpose: 'batch', filename: 'requests.jsonl', blob, expiresAfterSeconds: null };
        const identity = { ...getCallIdentity(request), fingerprint: fingerprintBody(`${endpoint} ${blob.sha256}`) };
        const { batch, replayed } = await batches.create(identity, toEventMetadata(request), {
          inputFileId: fileId,
          inputBytes: blob.sizeBytes,
          also: { streams: [fileId], run: async (unit) => void (await files.record(unit, fileId, file)) },
          endpoint,
          completionWindow: '24h',
          metadata: null,
          outputExpiresAfterSeconds: null,
          gatewayOptions: recordable({ on_invalid_line: 'fail_line' }, request),
          headers: inheritedFrom(request),
          target: (unit, batchId) => batchTargets.store(unit, { workspaceId, batchId }, credential),
        });
        // The first request has stored its own.
        if (replayed) await blobs.remove(blob.blob);
        if (replayed) response.setHeader('idempotent-replayed', 'true');
        response.json(toShown(deps, await batches.retrieve(workspaceId, batch.id)));
      });
    },
  };
}

function checkContentType(request: Request): void {
  refuseCompressed(request);
  if (/^application\/json\b/i.test(request.headers['content-type'] ?? '')) return;
  const message = "Send the requests as JSON, with the header 'content-type: application/json'.";
  throw new GatewayError('unsupported_media_type', 'unsupported_media_type', message);
}

/** Stores the requests as the lines of a batch while they arrive. */
async function storeRequests(
  request: Request,
  blobs: Pick<BlobStore, 'put'>,
  { sizeBytesMax, rate, onKept }: { sizeBytesMax: number; rate: UploadRate; onKept: (bytes: number) => void },
) {
  const body = new PassThrough();
  const onClose = (): void => {
    if (!request.complete) body.destroy(clientDisconnected());
  };
  request.once('close', onClose).pipe(body);
  const unwatch = watchUploadRate(request, rate, (error) => body.destroy(error));
  const total = setTimeout(() => {
    const message = `The upload took longer than ${totalMs} ms.`;
    body.destroy(new GatewayError('invalid_request', 'request_timeout', message));
  }, totalMs);
  try {
    const { lineBytesMax: elementBytesMax } = defaultLimits;
    const requests = readElements(body, { member: 'requests', elementBytesMax, onKept });
    return await blobs.put(toLines(requests), { sizeBytesMax, leavesReserve: true });
  } finally {
    clearTimeout(total);
    unwatch();
    request.off('close', onClose).unpipe(body);
  }
}

async function* toLines(requests: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let index = 0;
  for await (const bytes of requests) {
    const { custom_id: customId, params: body } = readMembers(bytes, index);
    yield Buffer.concat([
      Buffer.from('{"custom_id":'),
      customId,
      Buffer.from(`,"method":"POST","url":"${endpoint}","body":`),
      withoutLineBreaks(body),
      Buffer.from('}\n'),
    ]);
    index += 1;
  }
}

function readMembers(bytes: Buffer, index: number): { custom_id: Buffer; params: Buffer } {
  const refuse = (code: string, message: string, member: string): GatewayError =>
    new GatewayError('invalid_request', code, message, { param: `requests[${index}]${member}` });
  let found: ReturnType<typeof memberValues<'custom_id' | 'params'>>;
  try {
    found = memberValues(bytes, ['custom_id', 'params']);
  } catch (error) {
    throw refuse('invalid_json', `The request ${index} is not valid JSON: ${(error as Error).message}.`, '');
  }
  const { custom_id: customId, params: body } = found;
  if (customId?.[0] !== 0x22) {
    throw refuse('missing_required_parameter', `The request ${index} needs a text as its 'custom_id'.`, '.custom_id');
  }
  if (body?.[0] !== 0x7b) {
    throw refuse('missing_required_parameter', `The request ${index} needs an object as its 'params'.`, '.params');
  }
  return { custom_id: customId, params: body };
}

const toShown = ({ baseUrl }: Pick<MessageBatchDeps, 'baseUrl'>, batch: BatchRow): MessageBatch =>
  toMessageBatch(batch, isTerminal(batch.status) ? `${baseUrl()}/v1/messages/batches/${batch.id}/results` : null);

/** Throws not_found also for a batch of another endpoint. */
async function find({ batches }: Pick<MessageBatchDeps, 'batches'>, request: Request, id: string): Promise<BatchRow> {
  const batch = await batches.retrieve(getCaller(request).workspaceId, id);
  if (batch.endpoint === endpoint) return batch;
  throw new GatewayError('not_found', null, `The batch '${id}' does not consist of messages.`, { param: 'batch_id' });
}

const listMessageBatches = (deps: MessageBatchDeps): Route => ({
  ...read,
  path: '/v1/messages/batches',
  operationId: 'listMessageBatches',
  summary: "List batches of messages in Anthropic's format, newest first",
  description:
    'Batches of `/v1/messages` that were created at `/v1/batches` are listed as well. Pages go in both directions.',
  responses: { 200: { description: 'A page of batches.', schema: MessageBatchList } },
  ...withInput({ query: MessageBatchListQuery }, async ({ query }, request, response) => {
    const { limit = 20, after_id: after = null, before_id: before = null } = query;
    const { workspaceId } = getCaller(request);
    const found = await deps.batches.list({ workspaceId, endpoint, after, before, limit });
    const rows = found.slice(0, limit);
    const data = (before === null ? rows : rows.toReversed()).map((batch) => toShown(deps, batch));
    response.json({
      data,
      has_more: found.length > limit,
      first_id: data[0]?.id ?? null,
      last_id: data.at(-1)?.id ?? null,
    });
  }),
});

const retrieveMessageBatch = (deps: MessageBatchDeps): Route => ({
  ...read,
  path: '/v1/messages/batches/:batch_id',
  operationId: 'retrieveMessageBatch',
  summary: "Retrieve a batch of messages in Anthropic's format",
  description: 'Counts of a running batch are current. `results_url` is null until it has ended.',
  responses: { 200: { description: 'The batch.', schema: MessageBatch } },
  ...withInput({ params }, async (input, request, response) => {
    response.json(toShown(deps, await find(deps, request, input.params.batch_id)));
  }),
});

const cancelMessageBatch = (deps: MessageBatchDeps): Route => ({
  method: 'POST',
  tag: 'Messages',
  scope: 'batches.write',
  path: '/v1/messages/batches/:batch_id/cancel',
  operationId: 'cancelMessageBatch',
  summary: 'Cancel a batch of messages; running calls can finish',
  description: 'Completed results are kept. The remaining requests end as `canceled`.',
  responses: { 200: { description: 'The batch.', schema: MessageBatch } },
  ...withInput({ params }, async (input, request, response) => {
    const { id, workspace_id: workspaceId } = await find(deps, request, input.params.batch_id);
    response.json(toShown(deps, await deps.batches.cancel(workspaceId, id, toEventMetadata(request))));
  }),
});

const deleteMessageBatch = (deps: MessageBatchDeps): Route => ({
  method: 'DELETE',
  tag: 'Messages',
  scope: 'batches.write',
  path: '/v1/messages/batches/:batch_id',
  operationId: 'deleteMessageBatch',
  summary: 'Delete the requests and results of a batch of messages that has ended',
  description: 'Deletes its files. The batch itself remains, because it is part of the record.',
  errors: { batch_not_ended: 'the batch is still running; cancel it first' },
  responses: { 200: { description: 'The batch was deleted.', schema: DeletedMessageBatch } },
  ...withInput({ params }, async (input, request, response) => {
    const batch = await find(deps, request, input.params.batch_id);
    requireEnded(batch);
    for (const file of [batch.input_file_id, batch.output_file_id, batch.error_file_id]) {
      if (file === null || (await findKept(deps, batch, file)) === null) continue;
      await deps.files.remove(batch.workspace_id, file, toEventMetadata(request));
    }
    response.json({ id: batch.id, type: 'message_batch_deleted' });
  }),
});

/** A file of a batch; null if it was deleted or has expired. */
async function findKept(
  { files }: Pick<MessageBatchDeps, 'files'>,
  batch: BatchRow,
  id: string,
): Promise<FileRow | null> {
  const file = await files.find(batch.workspace_id, id);
  return file === undefined || file.deleted_at !== null ? null : file;
}

function requireEnded(batch: BatchRow): void {
  if (isTerminal(batch.status)) return;
  const message = `The batch '${batch.id}' has not ended; its status is ${batch.status}.`;
  throw new GatewayError('conflict', 'batch_not_ended', message, { param: 'batch_id' });
}

const retrieveMessageBatchResults = (deps: MessageBatchDeps): Route => ({
  ...read,
  path: '/v1/messages/batches/:batch_id/results',
  operationId: 'retrieveMessageBatchResults',
  summary: 'Download the results of a batch of messages that has ended',
  description: 'JSON lines: those that succeeded first, in the order of the requests, and then all others.',
  errors: { batch_not_ended: 'the batch is still running', results_deleted: 'the results were deleted' },
  responses: { 200: { description: 'The results.', contentType: 'application/x-jsonl' } },
  ...withInput({ params }, async (input, request, response) => {
    const batch = await find(deps, request, input.params.batch_id);
    requireEnded(batch);
    const ids = batch.status === 'failed' ? [batch.input_file_id] : [batch.output_file_id, batch.error_file_id];
    const contents = [];
    for (const id of ids) {
      if (id === null) continue;
      const file = await findKept(deps, batch, id);
      if (file === null) {
        const message = `The results of the batch '${batch.id}' were deleted.`;
        throw new GatewayError('not_found', 'results_deleted', message, { param: 'batch_id' });
      }
      deps.countRead(request, 'file', id);
      contents.push(file.blob);
    }
    response.setHeader('content-type', 'application/x-jsonl');
    const { workspaceId } = getCaller(request);
    const lease = deps.memory.open(workspaceId);
    getContext(request).memory = lease;
    const { signal } = abortWhenClientLeaves(response);
    const lines = withMemory(linesOf(deps, contents), lease, signal);
    const send = () => sendPieces(response, resultsOf(batch, lines), deps.stallTimeoutMs);
    await deps.resultStreams.run(workspaceId, send, signal);
  }),
});

async function* linesOf({ blobs }: MessageBatchDeps, contents: string[]): AsyncGenerator<Buffer> {
  for (const blob of contents) yield* readAllLines(await blobs.read(blob));
}

/** The lines, each charged while it is in use, because one answer can have many megabytes. */
async function* withMemory(
  lines: AsyncIterable<Buffer>,
  lease: MemoryLease,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  for await (const line of lines) {
    const bytes = Math.min(copies * line.length, lease.leaseBytesMax);
    await lease.chargeWhenFree(bytes, signal);
    yield line;
    lease.give(bytes);
  }
}

async function* resultsOf(batch: BatchRow, lines: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  const lineEnd = Buffer.from('\n');
  for await (const line of lines) {
    if (batch.status !== 'failed') yield Buffer.concat([toMessageResult(line), lineEnd]);
    else yield Buffer.concat([toRefusedResult(customIdOf(line), refusal(batch)), lineEnd]);
  }
}

/** As raw JSON. The line can be what the batch was refused for. */
function customIdOf(line: Buffer): Buffer {
  try {
    const id = memberValue(line, 'custom_id');
    if (id?.[0] === 0x22) return id;
  } catch {
    // It is not JSON, so it has no ID.
  }
  return Buffer.from('null');
}

/** Why a batch was refused as a whole. */
const refusal = ({ errors }: BatchRow): string =>
  (errors ?? []).map(({ line, message }) => (line === null ? message : `Request ${line}: ${message}`)).join(' ') ||
  'The batch was refused.';
