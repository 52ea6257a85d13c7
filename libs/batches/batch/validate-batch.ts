import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { PublicNames } from '#libs/contracts/configs/public-models.ts';
import type { BatchError } from '#libs/database/schema.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { Holder } from '#libs/queue/process-lease.ts';
import { createRunningRoot } from '#libs/seal/merkle-tree.ts';
import type { BatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import type { KnownPrompt } from '#libs/validation/lines/check-prompt-line.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import type { ValidationResult } from '#libs/validation/validation.ts';
import { decideBatch, type PinnedPrompts } from './batch.ts';
import { canQueueLines, type BatchLimits } from './admission.ts';
import { batchModel, type BatchRow } from './batch-model.ts';
import type { BatchWatch } from './batch-watch.ts';
import { findSchemaProblem } from '../lines/validate-output.ts';
import { insertChunks, type ChunkRow } from '../chunks/chunk.ts';
import { appendAndFollow, type FollowDeps } from '../chunks/follow-status.ts';
import { sendTickets } from '../chunks/tickets.ts';
import { turnToLines } from '../chunks/turns.ts';
import { failsLinesAlone, makeLineRules, readInput, type LineDestination, type VirtualKey } from './line-rules.ts';

const longReadMs = 1_000;

type Deps = FollowDeps & {
  eventLog: EventLog;
  blobs: BlobStore;
  validator: BatchFileValidator;
  outputs: Pick<OutputChecker, 'check'>;
  watch: BatchWatch;
  /** The input file. Undefined when it is unknown, deleted or expired. */
  findInput: (workspaceId: string, fileId: string) => Promise<{ blob: string } | undefined>;
  /** The virtual keys of a workspace. */
  virtualKeys: (workspaceId: string) => Promise<readonly VirtualKey[]>;
  /** The public models that the caller of a batch can use. */
  publicNames: (batch: BatchRow) => Promise<PublicNames>;
  /** The prompts of a workspace that lines can use, by slug and ID. */
  prompts: (workspaceId: string) => Promise<ReadonlyMap<string, KnownPrompt>>;
  /** The names of the prompts in the config of a batch. Throws GatewayError for a config that cannot be read. */
  configPrompts: (batch: BatchRow) => Promise<readonly string[]>;
  /** The versions that these names refer to now. Throws GatewayError, with `param`, for one that does not exist. */
  pinPrompts: (workspaceId: string, names: readonly string[], param: string) => Promise<PinnedPrompts>;
  limits: { linesMax: number | null; linesPerChunk: number; chunkBytesMax: number };
  /** The limits of the batch's workspace. */
  workspaceLimits: BatchLimits;
  /** The identity under which this process can run the first chunk at once; null: others come first. */
  firstHolder: () => Holder | null;
  /** Runs the first chunk, which this process holds. `left`: how many others are ready. */
  runFirst: (first: FirstChunk) => void;
  logger: Logger;
};

export type FirstChunk = { batch: BatchRow; blob: string; chunk: ChunkRow; holder: Holder; left: number };

/**
 * Checks every line of a batch's input file and cuts the file into chunks, or fails the batch with the errors found. Running it twice is harmless: the transaction checks the batch's status again.
 */
export async function validateBatch(deps: Deps, batch: BatchRow, signal: AbortSignal): Promise<BatchRow> {
  if ((batch.status !== 'validating' && batch.status !== 'cancelling') || batch.in_progress_at !== null) return batch;
  const input = await deps.findInput(batch.workspace_id, batch.input_file_id);
  if (!input) return await fail(deps, batch, [missingInput(batch.input_file_id)]);

  const { signal: cancelled, unwatch } = deps.watch.watch(batch.id, 'validating');
  const startedAt = performance.now();
  const inputRoot = createRunningRoot();
  let result: ValidationResult;
  try {
    if (batch.status === 'cancelling') return await fail(deps, batch, []);
    const keys = 'caller' in batch.target ? [] : await deps.virtualKeys(batch.workspace_id);
    const publicNames = batch.target.type === 'none' ? await deps.publicNames(batch) : undefined;
    const caller = { workspaceId: batch.workspace_id, signal: AbortSignal.any([signal, cancelled]) };
    const problem = await findSchemaProblem(deps.outputs, batch.gateway_options, caller);
    if (problem !== null) return await fail(deps, batch, [problem]);
    result = await deps.validator.validate({
      open: () => readInput(deps.blobs, input.blob),
      ...makeLineRules(lineDestination(batch, keys), keys, publicNames),
      prompts: await deps.prompts(batch.workspace_id),
      withoutBodies: failsLinesAlone(batch),
      ...deps.limits,
      onLeaves: (leaves) => {
        for (let at = 0; at < leaves.length; at += 32) inputRoot.add(leaves.subarray(at, at + 32));
      },
      signal: AbortSignal.any([signal, cancelled]),
    });
  } catch (error) {
    // If the batch was cancelled meanwhile, `fail` ends it as cancelled. It is tried again after any other error.
    if (!cancelled.aborted || signal.aborted) throw error;
    return await fail(deps, batch, []);
  } finally {
    unwatch();
  }
  const durationMs = Math.round(performance.now() - startedAt);
  deps.logger.info(
    { batch_id: batch.id, valid: result.valid, lines: result.lineCount, duration_ms: durationMs },
    'batch validated',
  );
  if (!result.valid) return await fail(deps, batch, result.errors);
  // The file was deleted while it was being read: OpenAI fails such a batch. After validation, deleting the file has no
  // effect on the batch. (If reading took less than a second, the order of the two cannot be observed.)
  if (durationMs >= longReadMs && !(await deps.findInput(batch.workspace_id, batch.input_file_id)))
    return await fail(deps, batch, [missingInput(batch.input_file_id)]);
  let pinned: PinnedPrompts | undefined;
  try {
    pinned = await pinAll(deps, batch, result.prompts);
  } catch (error) {
    // A prompt, or a partial in one, was deleted meanwhile, or the config names one that never existed.
    if (!(error instanceof GatewayError) || error.kind === 'unavailable') throw error;
    const problem = {
      code: error.code ?? 'invalid_request',
      message: error.message,
      param: error.param ?? 'body.prompt_id',
      line: null,
    };
    return await fail(deps, batch, [problem]);
  }
  return await startRunning(
    deps,
    batch,
    { ...result, blob: input.blob, inputRoot: Buffer.from(inputRoot.root()).toString('hex') },
    pinned,
  );
}

/** The versions of all prompts that the lines and the config name; undefined for none. */
async function pinAll(deps: Deps, batch: BatchRow, ofLines: readonly string[]): Promise<PinnedPrompts | undefined> {
  const ofConfig = await deps.configPrompts(batch);
  if (ofLines.length + ofConfig.length === 0) return undefined;
  const lines = await deps.pinPrompts(batch.workspace_id, ofLines, 'body.prompt_id');
  const config = await deps.pinPrompts(batch.workspace_id, ofConfig, 'config.prompt_id');
  // A name refers to one version in the whole batch.
  return {
    prompts: { ...config.prompts, ...lines.prompts },
    partials: { ...config.partials, ...lines.partials },
  };
}

/** The target that is stored with the batch, for the check of its lines. */
function lineDestination(
  { target, endpoint, gateway_options: options }: BatchRow,
  keys: readonly VirtualKey[],
): LineDestination {
  const own = target.type === 'virtual_key' ? keys.find(({ id }) => id === target.virtual_key_id)?.provider : undefined;
  return {
    endpoint,
    hasConfig: 'caller' in target,
    hasTarget: target.type !== 'none',
    provider: target.type === 'provider' ? target.provider : (own ?? null),
    model: typeof options['provider_model'] === 'string' ? options['provider_model'] : null,
  };
}

async function startRunning(
  deps: Deps,
  batch: BatchRow,
  result: Extract<ValidationResult, { valid: true }> & { blob: string; inputRoot: string },
  pinnedPrompts: PinnedPrompts | undefined,
): Promise<BatchRow> {
  const { after: started, first } = await deps.eventLog.transact(commandOf(batch), async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    const { lineCount, chunks, blob, inputRoot } = result;
    if (!(await canQueueLines(unit.tx, batch.workspace_id, lineCount, deps.workspaceLimits))) {
      const errors = [tooManyLines(lineCount, deps.workspaceLimits.queuedLinesMax)];
      const failure = decideBatch(state, { type: 'fail_validation', errors }, unit.now);
      return { after: await appendAndFollow(deps, unit, state, failure), first: null };
    }
    // A model name that Postgres cannot store is ignored. It is read from each line instead.
    const model = result.model === null || toStorableText(result.model) !== result.model ? null : result.model;
    const events = decideBatch(
      state,
      { type: 'finish_validation', lineCount, chunkCount: chunks.length, model, inputRoot, pinnedPrompts },
      unit.now,
    );
    const after = await appendAndFollow(deps, unit, state, events);
    if (after.status !== 'in_progress' || events.length === 0) return { after, first: null };
    // A small batch needs no ticket and no claim.
    const holder = after.paused_at === null ? deps.firstHolder() : null;
    const left = await turnToLines(unit.tx, after, chunks.length, holder?.id);
    const taker = left < chunks.length ? holder : null;
    const chunk = await insertChunks(unit.tx, batch.id, chunks, taker?.id);
    if (left > 0) await sendTickets(deps.queue, unit.tx, 'lines', left);
    return { after, first: taker && { batch: after, blob, chunk, holder: taker, left } };
  });
  if (first !== null) deps.runFirst(first);
  return started;
}

async function fail(deps: Deps, batch: BatchRow, errors: BatchError[]): Promise<BatchRow> {
  return await deps.eventLog.transact(commandOf(batch), async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    const failure = { type: 'fail_validation' as const, errors: errors.map(toStorable) };
    return await appendAndFollow(deps, unit, state, decideBatch(state, failure, unit.now));
  });
}

const commandOf = (batch: BatchRow) => ({
  workspaceId: batch.workspace_id,
  streams: [batch.id],
  model: batchModel,
  metadata: byWorker,
});

/** OpenAI fails a batch in the same way when it exceeds an organization's limit of enqueued tokens. */
function tooManyLines(lineCount: number, queuedLinesMax: number): BatchError {
  const message = `This batch has ${lineCount} lines. Together with the open batches of this workspace, it exceeds the limit of ${queuedLinesMax} queued lines. Create the batch again when some lines are done.`;
  return { code: 'too_many_queued_lines', message, param: null, line: null };
}

/** OpenAI's error, but without an organization to name. */
function missingInput(fileId: string): BatchError {
  const message = `Cannot find file ${fileId}, or this workspace does not have access to it.`;
  return { code: 'invalid_request', message, param: 'file_id', line: null };
}

/** Errors quote the file, and jsonb cannot store every string that JSON allows. */
const toStorable = (error: BatchError): BatchError => ({
  ...error,
  message: toStorableText(error.message),
  param: error.param === null ? null : toStorableText(error.param),
});
