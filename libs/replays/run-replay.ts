import { Readable } from 'node:stream';
import { sql, type Kysely } from 'kysely';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { Batches } from '#libs/batches/batch/batches.ts';
import { isSuccess } from '#libs/batches/results/result-line.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { BatchTarget, Database } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { defaultTryMs } from '#libs/event-log/idempotency.ts';
import type { Files } from '#libs/files/files.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { createBodiesReader } from '#libs/request-log/bodies/recorded-bodies.ts';
import { trafficReplayModel, type ReplayJudge, type TrafficReplayData } from '#libs/resources/traffic-replays.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import { compareContents, readContent } from './compare-answers.ts';
import { readJsonLines, readResultLines, type ResultLine } from './json-lines.ts';
import { addVerdicts, createJudge, type JudgeSample } from './judge.ts';
import { batchOfReplay, toInputFile } from './replay-batch.ts';
import { originalCalls, originalLines, readLineFacts, type Original, type Originals } from './originals.ts';
import { classifyLine, ReplayReporter, type CallFacts, type ComparedLine, type Side } from './replay-report.ts';

export type ReplayDeps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  blobs: BlobStore;
  files: Files;
  /** For the keys of recorded bodies. */
  secrets: Pick<Secrets, 'readOwned'>;
  outputs: Pick<OutputChecker, 'check'>;
  batches: Pick<Batches, 'create'>;
  releaseTarget: (unit: UnitOfWork, target: BatchTarget) => Promise<void>;
  logger: Logger;
};

type Replay = Pick<ResourceRow<TrafficReplayData>, 'id' | 'workspace_id' | 'data'>;

/**
 * Continues a replay whose batch has ended: compares the answers, or counts the verdicts of its judge. Safe to repeat: a
 * step that is already recorded is not made again.
 */
export async function runReplay(
  deps: ReplayDeps,
  { replay_id: replayId, batch_id: batchId }: { replay_id: string; batch_id: string },
  signal: AbortSignal,
): Promise<void> {
  const replay = await findReplay(deps.db, replayId);
  const batch = await deps.db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst();
  // Anyone can name a replay in the metadata of another batch.
  if (!replay || batch?.workspace_id !== replay.workspace_id || !isTerminal(batch.status)) return;
  const { status, batch_id: ownBatchId, judge: asked } = replay.data;
  const isJudging = status === 'judging' && batch.id === asked?.batch_id;
  if (!isJudging && !(status === 'running' && batch.id === ownBatchId)) return;
  try {
    if (batch.status === 'failed') throw batchFailed(batch);
    if (isJudging) await judge(deps, replay, asked, batch);
    else await compare(deps, replay, batch, signal);
  } catch (error) {
    // After any other error the job is tried again.
    if (!(error instanceof GatewayError) || !isFinal(error) || signal.aborted) throw error;
    deps.logger.warn({ err: error, replay_id: replay.id }, 'a traffic replay failed');
    await append(deps, replay, 'failed', { status: 'failed', error: error.message });
  }
}

/** Whether the same step would fail again: a file was deleted, or the batch was refused. */
const isFinal = ({ kind }: GatewayError): boolean => kind === 'not_found' || kind === 'invalid_request';

/** The input file of a replay is generated, so only its target, or a model in it, can be wrong. */
const batchFailed = ({ id, errors }: BatchRow): GatewayError =>
  new GatewayError('invalid_request', 'batch_failed', `The batch ${id} failed. ${errors?.[0]?.message ?? ''}`.trim());

async function findReplay(db: Kysely<Database>, id: string): Promise<Replay | undefined> {
  const { rows } = await sql<Replay>`
    select id, workspace_id, data from resource
    where kind = 'traffic_replay' and id = ${id} and deleted_at is null`.execute(db);
  return rows[0];
}

/** Appends an event unless another worker has made the step already. The secrets of a judge that is not needed are deleted. */
async function append(
  { eventLog, releaseTarget }: ReplayDeps,
  { id, workspace_id: workspaceId, data: { status, judge } }: Replay,
  verb: 'compared' | 'judged' | 'failed',
  data: Partial<TrafficReplayData>,
): Promise<void> {
  await eventLog.transact({ workspaceId, streams: [id], metadata: replayMetadata }, async (unit) => {
    if (!(await isAt(unit, id, status))) return;
    if (status === 'running' && judge !== null) await releaseTarget(unit, judge.target);
    await unit.append(trafficReplayModel, id, [{ type: `traffic_replay.${verb}`, data }]);
  });
}

const replayMetadata = { actor: { type: 'system' as const, id: 'traffic replay' } };

async function isAt(unit: UnitOfWork, id: string, status: TrafficReplayData['status']): Promise<boolean> {
  const row = await unit.load(trafficReplayModel, id);
  return row !== undefined && row.deleted_at === null && (row.data as TrafficReplayData).status === status;
}

async function compare(deps: ReplayDeps, replay: Replay, batch: BatchRow, signal: AbortSignal): Promise<void> {
  const reporter = new ReplayReporter();
  const sample = replay.data.judge && createJudge(replay.data.judge);
  for await (const { compared, request, answers } of compareLines(deps, replay, batch, signal)) {
    reporter.add(compared);
    if (compared.kind === 'different' || compared.kind === 'schema_broken')
      sample?.add({ line: compared.line, request, ...answers });
  }
  const found = { report: reporter.report(), differences: reporter.differences() };
  if (sample !== null && !sample.isEmpty()) await startJudge(deps, replay, batch, sample, found);
  else await append(deps, replay, 'compared', { ...found, status: 'completed' });
}

type Found = Required<Pick<TrafficReplayData, 'report' | 'differences'>>;

/** Creates the batch of the judge in the transaction that records the comparison. */
async function startJudge(
  { blobs, files, batches }: ReplayDeps,
  { id, workspace_id: workspaceId }: Replay,
  batch: BatchRow,
  { judge, lines }: JudgeSample,
  found: Found,
): Promise<void> {
  const blob = await blobs.put(Readable.from(lines()), { leavesReserve: true });
  const fileId = newId('file-');
  const identity = {
    workspaceId,
    keyId: batch.headers['api_key_id'] ?? '',
    route: 'traffic replay',
    idempotencyKey: judge.batch_id,
    retryCount: 0,
    tryMsMax: defaultTryMs,
    requestId: judge.batch_id,
    fingerprint: judge.batch_id,
  };
  await batches.create(identity, replayMetadata, {
    id: judge.batch_id,
    inputFileId: fileId,
    inputBytes: blob.sizeBytes,
    also: {
      streams: [fileId, id],
      async run(unit) {
        if (!(await isAt(unit, id, 'running'))) throw new Error(`another worker has continued the replay ${id}`);
        await files.record(unit, fileId, toInputFile(`${id}-judge`, blob));
        const data = { ...found, status: 'judging' };
        await unit.append(trafficReplayModel, id, [{ type: 'traffic_replay.compared', data }]);
      },
    },
    ...batchOfReplay(id),
    endpoint: '/v1/chat/completions',
    gatewayOptions: { validate_outputs: { retries: 2 } },
    headers: batch.headers,
    target: () => Promise.resolve(judge.target),
  });
}

/** Adds up the verdicts of the judge. */
async function judge(deps: ReplayDeps, replay: Replay, asked: ReplayJudge, batch: BatchRow): Promise<void> {
  const judged = await addVerdicts(asked, openResults(deps, batch), replay.data.differences ?? []);
  await append(deps, replay, 'judged', { ...judged, status: 'completed' });
}

/** The lines that are compared together, so that their originals are read together. */
const groupLines = 32;

type LinePair = { compared: ComparedLine; request: unknown; answers: { original: unknown; replay: unknown } };

/** Compares the lines of a batch with their originals, in order. */
async function* compareLines(
  deps: ReplayDeps,
  replay: Replay,
  batch: BatchRow,
  signal: AbortSignal,
): AsyncGenerator<LinePair> {
  const { workspace_id: workspaceId, data } = replay;
  const facts = await waitForFacts(deps, batch, signal);
  const requests = openLines(deps, workspaceId, batch.input_file_id);
  const originals = await openOriginals(deps, replay);
  try {
    let group: { result: ResultLine; request: unknown }[] = [];
    for await (const result of openResults(deps, batch)) {
      const request = (await requests.next()).value;
      group.push({ result, request: (request?.value as { body?: unknown } | undefined)?.body });
      if (group.length < groupLines && result.line < batch.total) continue;
      signal.throwIfAborted();
      const found = await originals.find(group.flatMap(({ result: { customId } }) => customId ?? []));
      for (const { result: each, request: body } of group) {
        const original = found.get(each.customId ?? '') ?? null;
        const place = { endpoint: data.endpoint, workspaceId, signal };
        yield await compareLine(deps, place, body, original, each, facts.get(each.line) ?? null);
      }
      group = [];
    }
  } finally {
    await requests.return(undefined);
    await originals.close();
  }
}

async function compareLine(
  { outputs }: Pick<ReplayDeps, 'outputs'>,
  { endpoint, ...caller }: { endpoint: string; workspaceId: string; signal: AbortSignal },
  request: unknown,
  found: Original | null,
  result: ResultLine,
  facts: CallFacts | null,
): Promise<LinePair> {
  const schema = findSchema(endpoint, request);
  const validate = async ({ succeeded, body }: Pick<Side, 'succeeded' | 'body'>): Promise<boolean | null> => {
    if (schema === null || !succeeded || body === undefined) return null;
    const verdict = await outputs.check({ ...schema, answer: Buffer.from(JSON.stringify(body)) }, caller);
    return verdict.kind === 'unchecked' ? null : verdict.kind === 'passed';
  };
  const answered = { succeeded: isSuccess(result.status), body: result.body, facts };
  const replay = { ...answered, isValid: await validate(answered) };
  const original = found && { ...found, isValid: await validate(found) };
  const answers = { original: readAnswer(endpoint, original), replay: readAnswer(endpoint, replay) };
  const isComparable = answers.original !== undefined && answers.replay !== undefined;
  const { isEqual, similarity } = isComparable
    ? compareContents(answers.original, answers.replay)
    : { isEqual: null, similarity: null };
  const compared: ComparedLine = {
    line: result.line,
    custom_id: result.customId ?? '',
    original_line: found?.line ?? null,
    kind: classifyLine(original, replay, isEqual),
    similarity,
    original,
    replay,
  };
  return { compared, request, answers };
}

const readAnswer = (endpoint: string, side: Side | null): unknown =>
  side?.succeeded === true && side.body !== undefined ? readContent(endpoint, side.body) : undefined;

/** The JSON Schema that a request asks its answer to follow; null: none. */
function findSchema(endpoint: string, request: unknown) {
  const { response_format: format, text } = (request ?? {}) as { response_format?: unknown; text?: unknown };
  if (endpoint === '/v1/chat/completions' && format !== undefined)
    return { operation: 'chat' as const, format: Buffer.from(JSON.stringify(format)) };
  if (endpoint === '/v1/responses' && text !== undefined)
    return { operation: 'responses' as const, format: Buffer.from(JSON.stringify(text)) };
  return null;
}

async function openOriginals(
  deps: ReplayDeps,
  { workspace_id: workspaceId, data }: Replay,
): Promise<Originals & { close: () => Promise<unknown> }> {
  const { db } = deps;
  const { source_batch_id: sourceId } = data;
  if (sourceId === null)
    return { ...originalCalls(db, createBodiesReader(deps), workspaceId), close: () => Promise.resolve() };
  const source = await db.selectFrom('batch').selectAll().where('id', '=', sourceId).executeTakeFirstOrThrow();
  const results = openResults(deps, source);
  const originals = originalLines(results, await readLineFacts(db, workspaceId, sourceId));
  return { ...originals, close: () => results.return(undefined) };
}

/** The results of a batch in the order of its lines. Throws not_found if a file was deleted. */
async function* openResults(deps: ReplayDeps, batch: BatchRow): AsyncGenerator<ResultLine> {
  const ids = [batch.output_file_id, batch.error_file_id].filter((id) => id !== null);
  yield* readResultLines(
    batch,
    ids.map((id) => openLines(deps, batch.workspace_id, id)),
  );
}

/** Opens the file when its first line is read. */
async function* openLines({ files, blobs }: ReplayDeps, workspaceId: string, id: string) {
  const file = await files.find(workspaceId, id);
  if (file === undefined)
    throw new GatewayError('not_found', 'file_not_found', `The file ${id} of the batch does not exist.`);
  yield* readJsonLines(await blobs.read(file.blob));
}

const factsTries = 15;
const factsWaitMs = 1_000;

/** Records of the last lines are written shortly after the batch has ended. Those that are missing after that are left out. */
async function waitForFacts(
  { db }: ReplayDeps,
  { id, workspace_id: workspaceId, completed }: BatchRow,
  signal: AbortSignal,
): Promise<ReadonlyMap<number, CallFacts>> {
  for (let tries = 1; ; tries += 1) {
    const facts = await readLineFacts(db, workspaceId, id);
    if (facts.size >= completed || tries >= factsTries) return facts;
    await sleep(factsWaitMs, signal);
    signal.throwIfAborted();
  }
}
