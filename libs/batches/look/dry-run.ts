import { Big } from 'big.js';
import type { Credential } from '#libs/credentials/resolve.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { BatchDryRun } from '#libs/contracts/batches/batch-dry-run.ts';
import type { PublicNames } from '#libs/contracts/configs/public-models.ts';
import type { BatchError, CreateBatchRequest, GatewayOptions } from '#libs/contracts/batches/batches.ts';
import type { FileRow } from '#libs/files/file-model.ts';
import type { BatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import type { KnownPrompt } from '#libs/validation/lines/check-prompt-line.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import type { ModelUsage } from '#libs/validation/slice-task.ts';
import { findSchemaProblem } from '../lines/validate-output.ts';
import { makeLineRules, readInput, type VirtualKey } from '../batch/line-rules.ts';
import { estimateBatch, type DryRunCall } from './estimate-batch.ts';

export type DryRunDeps = Parameters<typeof estimateBatch>[0] & {
  blobs: BlobStore;
  validator: BatchFileValidator;
  outputs: Pick<OutputChecker, 'check'>;
  /** The virtual keys of a workspace. */
  virtualKeys: (workspaceId: string) => Promise<readonly VirtualKey[]>;
  /** The prompts of a workspace that lines can use, by slug and ID. */
  knownPrompts: (workspaceId: string) => Promise<ReadonlyMap<string, KnownPrompt>>;
  limits: { linesMax: number | null };
};

/** A batch that was not created. */
export type DryRunBatch = {
  request: CreateBatchRequest;
  /** Undefined: the workspace has no such file. */
  file: Pick<FileRow, 'blob'> | undefined;
  /** The credential that the request selects, and whether it also selects a config. */
  credential: Credential;
  hasConfig: boolean;
  /** The public models that lines can name if there is no target. */
  publicNames: PublicNames;
  call: Omit<DryRunCall, 'endpoint' | 'model'>;
};

/** Reading stops after this time, and the answer covers the lines read by then. */
const readingMsMax = 20_000;

/** Predicts the course of a batch: the errors of its file, where its lines would go, and their possible cost. */
export async function dryRun(
  deps: DryRunDeps,
  { request, file, credential, hasConfig, publicNames, call }: DryRunBatch,
): Promise<BatchDryRun> {
  if (file === undefined) return toDryRun([missingFile(request.input_file_id)], null, null);
  const { workspaceId, signal } = call;
  const problem = await findSchemaProblem(deps.outputs, request.gateway_options, { workspaceId, signal });
  if (problem !== null) return toDryRun([problem], null, null);
  const { endpoint } = request;
  const model = request.gateway_options.provider_model ?? null;
  const place = {
    endpoint,
    hasConfig,
    hasTarget: hasConfig || credential.type !== 'none',
    provider:
      credential.type === 'none'
        ? null
        : credential.type === 'provider'
          ? credential.provider
          : credential.key.provider,
    model,
  };
  const names = place.hasTarget ? undefined : publicNames;
  const checked = await deps.validator.validate({
    open: () => readInput(deps.blobs, file.blob),
    ...makeLineRules(place, hasConfig ? [] : await deps.virtualKeys(workspaceId), names),
    prompts: await deps.knownPrompts(workspaceId),
    linesMax: deps.limits.linesMax,
    // The file is not cut into chunks.
    linesPerChunk: Number.MAX_SAFE_INTEGER,
    chunkBytesMax: Number.MAX_SAFE_INTEGER,
    estimatesUsage: true,
    enough: AbortSignal.timeout(readingMsMax),
    signal,
  });
  const estimate = await estimateBatch(deps, { ...call, endpoint, model }, ofOneModel(checked.usage, model));
  const limits = [...estimate.limits, ...toBoundLimit(request.gateway_options, estimate.cost_max_usd)];
  return toDryRun(checked.valid ? [] : checked.errors, checked, { ...estimate, limits });
}

/** The cost bound of the batch, as one of the budgets. */
const toBoundLimit = ({ max_cost: max }: GatewayOptions, needed: string | null): BatchDryRun['limits'] =>
  max === undefined
    ? []
    : [
        {
          limit: 'max_cost',
          label: 'max_cost',
          measure: 'cost',
          left: max,
          needed,
          suffices: needed === null ? null : new Big(needed).lte(max),
        },
      ];

/** With a model for all lines, the models in the lines do not matter. */
function ofOneModel(usages: readonly ModelUsage[], model: string | null): readonly ModelUsage[] {
  const [first, ...others] = usages;
  if (model === null || first === undefined) return usages;
  const sum = { ...first, model };
  for (const { lines, inputTokens, outputTokensMax, unboundedLines } of others) {
    sum.lines += lines;
    sum.inputTokens += inputTokens;
    sum.outputTokensMax += outputTokensMax;
    sum.unboundedLines += unboundedLines;
  }
  return [sum];
}

/** The error with which the batch would fail. */
const missingFile = (fileId: string): BatchError => ({
  code: 'invalid_request',
  message: `Cannot find file ${fileId}, or this workspace does not have access to it.`,
  param: 'file_id',
  line: null,
});

const toDryRun = (
  errors: readonly BatchError[],
  checked: { lineCount: number; isWhole: boolean } | null,
  estimate: Awaited<ReturnType<typeof estimateBatch>> | null,
): BatchDryRun => ({
  object: 'batch.dry_run',
  valid: errors.length === 0,
  is_whole: checked?.isWhole ?? true,
  request_counts: { total: checked?.lineCount ?? 0 },
  errors: errors.length === 0 ? null : { object: 'list', data: [...errors] },
  models: estimate?.models ?? [],
  cost_of_input_usd: estimate?.cost_of_input_usd ?? null,
  cost_max_usd: estimate?.cost_max_usd ?? null,
  limits: estimate?.limits ?? [],
});
