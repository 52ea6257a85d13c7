import type { BatchTargets } from '#libs/access/batch-target.ts';
import { credentialHeaders, credentialsOf } from '#libs/access/request-credentials.ts';
import type { Routing } from '#libs/access/routing.ts';
import { lineRulesOf, readInput, type VirtualKey } from '#libs/batches/line-rules.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { BatchDryRun } from '#libs/contracts/batch-dry-run.ts';
import { CreateBatchRequest, type BatchEndpoint, type BatchError } from '#libs/contracts/batches.ts';
import { metadataText } from '#libs/contracts/scalars.ts';
import type { Files } from '#libs/files/files.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/require-scope.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Turns } from '#libs/kernel/turns.ts';
import type { BatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import type { KnownPrompt } from '#libs/validation/check-prompt-line.ts';
import type { ModelUsage } from '#libs/validation/slice-task.ts';
import { estimateBatch } from './dry-run.ts';
import { exampleBatch, recordable, refuseOtherPurposes, withOptions } from './create-batch.ts';
import { batchLimitErrors, targetErrors } from '../document-texts.ts';

export type DryRunDeps = Parameters<typeof estimateBatch>[0] & {
  routing: Routing;
  files: Files;
  blobs: BlobStore;
  batchTargets: BatchTargets;
  validator: BatchFileValidator;
  /** The virtual keys of a workspace. */
  virtualKeys: (workspaceId: string) => Promise<readonly VirtualKey[]>;
  /** The prompts of a workspace that lines may be made of, by slug and id. */
  knownPrompts: (workspaceId: string) => Promise<ReadonlyMap<string, KnownPrompt>>;
  scopeOf: (endpoint: BatchEndpoint) => string;
  /** Turns of those that read a whole input file. */
  fileReads: Turns;
  limits: { linesMax: number | null };
};

/** No more lines are read after this time, and what is known by then is the answer. */
const readingMsMax = 20_000;

/**
 * POST /v1/batches/dry-run: what would happen to a batch with this body, without creating it. Whatever creating it would
 * refuse is refused here too. Errors: those of POST /v1/batches, and rate_limited (`too_many_queries`).
 */
export function dryRunBatch(deps: DryRunDeps): Route {
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
        const caller = callerOf(request);
        const { workspaceId, defaults } = caller;
        requireScope(caller, deps.scopeOf(body.endpoint));
        const file = await deps.files.find(workspaceId, body.input_file_id);
        refuseOtherPurposes(file);
        const { gateway_options: options } = body;
        const credentials = withOptions(credentialsOf(request.headers), options);
        const { caller: own, config } = await deps.batchTargets.choose({ workspaceId, credentials, defaults });
        const found = await deps.routing.planOf({ workspaceId, credentials, headers: null, defaults });
        if (file === undefined) return void response.json(toDryRun([missingFile(body.input_file_id)], null, null));
        const left = abortWhenClientLeaves(response).signal;
        const run = async (): Promise<void> => {
          const keys = config === null ? await deps.virtualKeys(workspaceId) : [];
          const place = {
            endpoint: body.endpoint,
            hasConfig: config !== null,
            hasTarget: config !== null || own.type !== 'none',
            provider: own.type === 'none' ? null : own.type === 'provider' ? own.provider : own.key.provider,
            model: options.provider_model ?? null,
          };
          const checked = await deps.validator.validate({
            open: () => readInput(deps.blobs, file.blob),
            ...lineRulesOf(place, keys),
            prompts: await deps.knownPrompts(workspaceId),
            linesMax: deps.limits.linesMax,
            // Nothing is cut into chunks.
            linesPerChunk: Number.MAX_SAFE_INTEGER,
            chunkBytesMax: Number.MAX_SAFE_INTEGER,
            estimatesUsage: true,
            enough: AbortSignal.timeout(readingMsMax),
            signal: left,
          });
          const { metadata: inherited } = recordable(options, request);
          const estimate = await estimateBatch(
            deps,
            {
              workspaceId,
              keyId: caller.keyId,
              credentials,
              found,
              endpoint: body.endpoint,
              model: place.model,
              metadata: asTexts({ ...body.metadata, ...inherited }),
              signal: left,
            },
            ofOneModel(checked.usage, place.model),
          );
          response.json(toDryRun(checked.valid ? [] : checked.errors, checked, estimate));
        };
        await deps.fileReads.run(workspaceId, run, left);
      },
    ),
  };
}

/** With a model for all lines, those of the lines do not matter. */
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

const asTexts = (metadata: Record<string, unknown>): Record<string, string> =>
  Object.fromEntries(Object.entries(metadata).map(([name, value]) => [name, metadataText(value)]));

/** As the batch would fail. */
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
