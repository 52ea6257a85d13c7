import { dryRun, type DryRunDeps } from '#libs/batches/dry-run/dry-run.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import type { Routing } from '#libs/credentials/routing.ts';
import { BatchDryRun } from '#libs/contracts/batches/batch-dry-run.ts';
import { CreateBatchRequest } from '#libs/contracts/batches/batches.ts';
import { metadataText } from '#libs/contracts/scalars.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Turns } from '#libs/kernel/turns.ts';
import { exampleBatch, recordable, refuseOtherPurposes, withOptions, type CreateBatchDeps } from './create-batch.ts';
import { batchLimitErrors, targetErrors } from '../document-texts.ts';

export type DryRunRouteDeps = DryRunDeps &
  CreateBatchDeps & {
    routing: Pick<Routing, 'planOf' | 'resolveLeaf'>;
    /** Turns of requests that read a whole input file. */
    fileReads: Turns;
  };

/**
 * POST /v1/batches/dry-run: predicts the course of a batch with this body, without creating it. Everything that
 * creating it would refuse is refused here too. Errors: those of POST /v1/batches, and rate_limited
 * (`too_many_queries`).
 */
export function dryRunBatch(deps: DryRunRouteDeps): Route {
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
        const { workspaceId, defaults } = caller;
        requireScope(caller, deps.scopeOf(body.endpoint));
        const file = await deps.files.find(workspaceId, body.input_file_id);
        refuseOtherPurposes(file);
        const { gateway_options: options } = body;
        const credentials = withOptions(readCredentials(request.headers), options);
        const { caller: credential, config } = await deps.batchTargets.choose({ workspaceId, credentials, defaults });
        const found = await deps.routing.planOf({ workspaceId, credentials, headers: null, defaults });
        const { signal } = abortWhenClientLeaves(response);
        const { metadata: inherited } = recordable(options, request);
        const metadata = asTexts({ ...body.metadata, ...inherited });
        const call = { workspaceId, keyId: caller.keyId, credentials, found, metadata, signal };
        const run = () => dryRun(deps, { request: body, file, credential, hasConfig: config !== null, call });
        response.json(file === undefined ? await run() : await deps.fileReads.run(workspaceId, run, signal));
      },
    ),
  };
}

const asTexts = (metadata: Record<string, unknown>): Record<string, string> =>
  Object.fromEntries(Object.entries(metadata).map(([name, value]) => [name, metadataText(value)]));
