import { randomInt } from 'node:crypto';
import type { Request, Response } from 'express';
import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import type { StoredBlob } from '#libs/blobs/blob-store.ts';
import type { BatchEndpoint, CreateBatchRequest } from '#libs/contracts/batches/batches.ts';
import {
  CreateReplayRequest,
  judgedAnswersDefault,
  ReplayDryRun,
  ReplayObject,
  type ReplaySelection,
} from '#libs/contracts/batches/traffic-replays.ts';
import type { LogListQuery } from '#libs/contracts/logs/logs.ts';
import {
  credentialHeaders,
  fingerprintCall,
  namedProvider,
  nothingRequested,
  readCredentials,
  type RequestedCredential,
} from '#libs/credentials/requested.ts';
import type { Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import type { Caller } from '#libs/http/caller.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import { createResourceStore } from '#libs/records/resource-store.ts';
import { viewOf } from '#libs/records/resource-view.ts';
import { batchOfReplay, readReplayId, toInputFile } from '#libs/replays/replay-batch.ts';
import { readCallPages, ReplayRequests } from '#libs/replays/replay-requests.ts';
import type { ReadBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import { trafficReplayKind, trafficReplayModel, type TrafficReplayData } from '#libs/resources/traffic-replays.ts';
import { inheritedFrom, recordable, withOptions } from '../batches/create-batch.ts';
import { refuseOutputChecks, type RetryDeps } from '../batches/retry-batch.ts';
import { predictBatch, type DryRunRouteDeps } from '../batches/routes.ts';
import type { CountRead } from '../organisation/guard-keys.ts';
import { batchLimitErrors, repeatErrors, storageErrors, targetErrors } from '../document-texts.ts';

type ReplayDeps = RetryDeps &
  DryRunRouteDeps & {
    db: Kysely<Database>;
    resources: KindDeps;
    countRead: CountRead;
    /** Reads the recorded bodies of calls, for one request. */
    bodiesReader: () => ReadBodies;
  };

/** Selecting calls stops at these limits. */
const requestBytesMax = 512 * 1_048_576;
const selectingMsMax = 120_000;
/** The maximum number of replays in a workspace; deleting one frees its place. */
const replaysMax = 1_000;

const description =
  'Selects recorded calls or the lines of a batch that has ended, creates a batch of them with your changes, and ' +
  'compares the answers when it has ended. Only calls with recorded bodies can be replayed (docs/replays.md). The ' +
  'files of the batch are deleted after 30 days. With `dry_run`, no batch is created.';

/**
 * POST /v1/replays: recorded calls, or the lines of a batch, as a new batch with another model, config or prompt. The replay, its
 * input file and its batch are recorded in one transaction, so that a repeated request creates none of them again.
 * Errors: not_found (batch), conflict (`batch_not_ended`, `nothing_to_replay`, `too_many_replays`), and those of POST /v1/batches.
 */
export const createReplay = (deps: ReplayDeps): Route => ({
  method: 'POST',
  path: '/v1/replays',
  operationId: 'createTrafficReplay',
  summary: 'Call recorded calls again with another model, config or prompt',
  description,
  example: {
    filters: { time_of_generation_min: '2026-11-24T00:00:00Z', time_of_generation_max: '2026-11-25T00:00:00Z' },
    model: '@main/gpt-5-mini',
    dry_run: true,
  },
  errors: {
    batch_not_ended: 'the batch is still running',
    nothing_to_replay: 'no call matches, or none can be replayed',
    too_many_replays: 'the workspace has reached its limit of replays',
    search_too_broad: 'the search took too long because few calls match: choose a shorter period',
    ...batchLimitErrors,
    ...targetErrors,
    ...storageErrors,
    ...repeatErrors,
  },
  tag: 'Traffic replays',
  scope: 'batches.write',
  optionalScopes: ['bodies.read'],
  responses: {
    200: { description: 'The replay, or the result of the dry run.', schema: z.union([ReplayObject, ReplayDryRun]) },
  },
  ...withInput(
    { body: CreateReplayRequest, headers: ['metadata', ...credentialHeaders] },
    async ({ body }, request, response) => {
      const { signal } = abortWhenClientLeaves(response);
      const prepared = await prepare(deps, request, body);
      const { workspaceId } = prepared;
      const write = () => writeRequests(deps, prepared, signal);
      const blob = await deps.fileReads.run(workspaceId, write, signal);
      const { selection } = prepared.requests;
      if (selection.calls > 0 && !body.dry_run) {
        response.json(await begin(deps, request, response, prepared, blob));
        return;
      }
      try {
        if (!body.dry_run) throw nothingToReplay(selection);
        const predict = () => predictBatch(deps, request, { body: toBatchRequest(prepared), file: blob, signal });
        const batch = selection.calls === 0 ? null : await deps.fileReads.run(workspaceId, predict, signal);
        response.json({ object: 'traffic_replay.dry_run', selection, batch });
      } finally {
        await deps.blobs.remove(blob.blob);
      }
    },
  ),
});

type Prepared = Awaited<ReturnType<typeof prepare>>;

/** Checks everything that does not need the requests, and records that recorded bodies are read. */
async function prepare(deps: ReplayDeps, request: Request, body: CreateReplayRequest) {
  const caller = getCaller(request);
  const { workspaceId, defaults } = caller;
  const source = body.batch_id === undefined ? null : await findSource(deps, workspaceId, body.batch_id);
  const endpoint = (source?.endpoint ?? body.endpoint) as BatchEndpoint;
  requireScope(caller, 'bodies.read');
  requireScope(caller, deps.scopeOf(endpoint));
  const options = body.gateway_options ?? {};
  refuseOutputChecks(options, endpoint);
  const credentials = withOptions(readCredentials(request.headers), options);
  const target = await deps.batchTargets.choose({ workspaceId, credentials, defaults });
  const judge = body.judge === undefined ? null : await chooseJudge(deps, caller, body.judge);
  await deps.admitUpload(workspaceId);
  const replayId = newId('replay_');
  deps.countRead(request, 'traffic_replay', replayId);
  const limits = { calls: body.limit, bytes: requestBytesMax, ms: selectingMsMax };
  const requests = new ReplayRequests(endpoint, { model: body.model ?? null, prompt: body.prompt ?? null }, limits);
  return { body, workspaceId, source, endpoint, options, credentials, target, judge, replayId, requests };
}

async function findSource({ batches }: ReplayDeps, workspaceId: string, id: string): Promise<BatchRow> {
  const batch = await batches.retrieve(workspaceId, id);
  if (isTerminal(batch.status)) return batch;
  const message = `The batch is ${batch.status}. Its lines can be replayed after it has ended.`;
  throw new GatewayError('conflict', 'batch_not_ended', message, { param: 'batch_id' });
}

/** Writes the input file of the batch. The caller removes it if it is not used. */
async function writeRequests(
  { db, blobs, files, bodiesReader }: ReplayDeps,
  { body, workspaceId, source, requests }: Prepared,
  signal: AbortSignal,
): Promise<StoredBlob> {
  const file = source && (await files.find(workspaceId, source.input_file_id));
  if (source !== null && (!file || file.deleted_at !== null)) {
    const message = 'The input file of this batch was deleted, so its lines cannot be read.';
    throw new GatewayError('conflict', 'input_file_deleted', message, { param: 'batch_id' });
  }
  const pages = () => readCallPages(db, workspaceId, body.filters as Partial<LogListQuery>, signal);
  const lines = file ? requests.ofLines(await blobs.read(file.blob)) : requests.ofCalls(pages(), bodiesReader());
  return await blobs.put(lines, { leavesReserve: true, signal });
}

/** The request for the batch of a dry run. */
function toBatchRequest({ replayId, endpoint, options }: Prepared): CreateBatchRequest {
  const { metadata } = batchOfReplay(replayId);
  return { input_file_id: '', endpoint, completion_window: '24h', metadata, gateway_options: options };
}

/** Records the replay, its input file and its batch. */
async function begin(
  deps: ReplayDeps,
  request: Request,
  response: Response,
  prepared: Prepared,
  blob: StoredBlob,
): Promise<object> {
  const { batches, batchTargets, blobs, files, resources } = deps;
  const { workspaceId, endpoint, options, credentials, target, replayId } = prepared;
  const fileId = newId('file-');
  const identity = { ...getCallIdentity(request), fingerprint: fingerprintCall(request, credentials) };
  const { batch, replayed } = await batches.create(identity, toEventMetadata(request), {
    ...batchOfReplay(replayId),
    endpoint,
    inputFileId: fileId,
    inputBytes: blob.sizeBytes,
    gatewayOptions: recordable(options, request),
    headers: inheritedFrom(request),
    target: (unit, batchId) => batchTargets.store(unit, { workspaceId, batchId }, target),
    also: {
      streams: [fileId, replayId, `traffic-replays:${workspaceId}`],
      async run(unit, batchId) {
        await refuseMoreReplays(unit, workspaceId);
        await files.record(unit, fileId, toInputFile(replayId, blob));
        const data = await toData(deps, request, prepared, unit, batchId);
        await unit.append(trafficReplayModel, replayId, [{ type: 'traffic_replay.created', data }]);
      },
    },
  });
  // The first request has written its own file.
  if (replayed) await blobs.remove(blob.blob);
  if (replayed) response.setHeader('idempotent-replayed', 'true');
  const store = createResourceStore<TrafficReplayData>(trafficReplayKind, resources);
  const row = await store.get({ workspaceId, name: readReplayId(batch) ?? replayId });
  return viewOf(trafficReplayKind, row, resources.clock.now());
}

async function toData(
  { batchTargets }: ReplayDeps,
  request: Request,
  { body, workspaceId, source, endpoint, options, requests, judge }: Prepared,
  unit: UnitOfWork,
  batchId: string,
): Promise<TrafficReplayData> {
  const { filters = null } = getJsonBody(request).value as { filters?: Record<string, unknown> };
  const judgeBatch = newId('batch_');
  const judgeTarget = judge && (await batchTargets.store(unit, { workspaceId, batchId: judgeBatch }, judge.target));
  return {
    filters,
    source_batch_id: source?.id ?? null,
    endpoint,
    model: body.model ?? null,
    prompt: body.prompt ?? null,
    config: typeof options.config === 'string' ? options.config : null,
    selection: requests.selection,
    batch_id: batchId,
    judge: judge && judgeTarget && { ...judge.asked, batch_id: judgeBatch, target: judgeTarget },
    status: 'running',
    created_by: getCaller(request).principal.id,
  };
}

/** The judge does not use the target of the replay: it has another one, or that of the key's default config. */
async function chooseJudge(
  { batchTargets, scopeOf }: ReplayDeps,
  caller: Caller,
  given: NonNullable<CreateReplayRequest['judge']>,
) {
  requireScope(caller, scopeOf('/v1/chat/completions'));
  const { model, virtual_key: slug, config, instructions = null } = given;
  const { workspaceId, defaults } = caller;
  const credentials: RequestedCredential = {
    ...nothingRequested,
    ...(slug === undefined ? {} : namedProvider(`@${slug.replace(/^@/, '')}`, 'judge.virtual_key')),
    ...(config === undefined ? {} : { config: { value: config, param: 'judge.config' } }),
  };
  const target = await batchTargets.choose({ workspaceId, credentials, defaults });
  const { limit = judgedAnswersDefault, seed = randomInt(2_147_483_648) } = given;
  return { target, asked: { model, instructions, limit, seed } };
}

async function refuseMoreReplays({ tx }: UnitOfWork, workspaceId: string): Promise<void> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource
    where kind = 'traffic_replay' and workspace_id = ${workspaceId} and deleted_at is null`.execute(tx);
  if ((rows[0]?.count ?? 0) < replaysMax) return;
  const message = `This workspace already has ${replaysMax} traffic replays, the maximum. Delete some that you no longer need.`;
  throw new GatewayError('quota_exceeded', 'too_many_replays', message);
}

function nothingToReplay({ left_out: leftOut }: ReplaySelection): GatewayError {
  const reasons = Object.entries(leftOut).map(([reason, count]) => `${reason} ${count}`);
  const why = reasons.length === 0 ? 'no call matches' : `all matching calls are left out: ${reasons.join(', ')}`;
  const message = `There is nothing to replay: ${why}. Only answered calls with recorded bodies can be replayed.`;
  return new GatewayError('conflict', 'nothing_to_replay', message);
}
