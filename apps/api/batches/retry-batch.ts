import { z } from 'zod';
import type { BatchTargets } from '#libs/credentials/batch-targets.ts';
import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import type { Batches } from '#libs/batches/batch/batches.ts';
import { copyLines, namesTarget, retryInputs, sameTarget } from '#libs/batches/look/retry-lines.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { RetryBatchRequest } from '#libs/contracts/batches/batch-lines.ts';
import {
  BatchObject,
  hasSchemas,
  withoutSchemas,
  type BatchEndpoint,
  type GatewayOptions,
} from '#libs/contracts/batches/batches.ts';
import { fingerprintBody } from '#libs/event-log/idempotency.ts';
import type { Files } from '#libs/files/files.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/rights.ts';
import { withoutReserved } from '#libs/contracts/scalars.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import { inheritedFrom, recordable, withOptions } from './create-batch.ts';
import { batchLimitErrors, storageErrors } from '../document-texts.ts';

export type RetryDeps = {
  batches: Batches;
  files: Files;
  blobs: BlobStore;
  batchTargets: BatchTargets;
  snapshot: Pick<AccessSnapshot, 'findCredentialById'>;
  scopeOf: (endpoint: BatchEndpoint) => string;
  /** Throws if the workspace has reached its storage limit. */
  admitUpload: (workspaceId: string) => Promise<void>;
  /** Turns of requests that read a whole input file. */
  fileReads: Turns;
};

/**
 * POST /v1/batches/{batch_id}/retry: a new batch of the failed or unfinished lines of an ended one, with their custom_ids. The
 * input file and the batch are recorded in one transaction, so that a repeated request creates neither again.
 * Errors: not_found; conflict (`batch_not_ended`, `nothing_to_retry`, `input_file_deleted`, `credentials_not_kept`), and
 * those of POST /v1/batches.
 */
export function retryBatch(deps: RetryDeps): Route {
  const { batches, files, blobs, batchTargets, snapshot, scopeOf, admitUpload, fileReads } = deps;
  return {
    method: 'POST',
    path: '/v1/batches/:batch_id/retry',
    operationId: 'retryBatch',
    summary: 'Create a batch from the lines of another one that failed or were not called',
    description:
      'Uses the options and target of the original batch unless the request overrides them. The new batch keeps each ' +
      '`custom_id`, and `retry_of` is the ID of the original batch. Without a body, it retries all failed lines.',
    example: { lines: 'failed' },
    errors: {
      batch_not_ended: 'the batch is still running',
      nothing_to_retry: 'the batch has no such lines',
      input_file_deleted: 'the input file or the error file was deleted',
      credentials_not_kept: 'the credentials sent with the original batch were deleted when it ended: send them again',
      ...batchLimitErrors,
      ...storageErrors,
    },
    tag: 'Batches',
    scope: 'batches.write',
    responses: { 200: { description: 'The new batch.', schema: BatchObject } },
    ...withInput(
      {
        params: z.object({ batch_id: z.string() }),
        body: RetryBatchRequest.optional(),
        headers: ['metadata', ...credentialHeaders],
      },
      async ({ params, body = {} }, request, response) => {
        const caller = getCaller(request);
        const { workspaceId, defaults } = caller;
        const first = await batches.retrieve(workspaceId, params.batch_id);
        requireScope(caller, scopeOf(first.endpoint as BatchEndpoint));
        const input = await retryInputs(files, first);
        const options = body.gateway_options ?? {};
        refuseOutputChecks(options, first.endpoint);
        const sent = withOptions(readCredentials(request.headers), options);
        const credentials = namesTarget(sent) ? sent : { ...sent, ...sameTarget(snapshot, first) };
        const credential = await batchTargets.choose({ workspaceId, credentials, defaults });
        await admitUpload(workspaceId);
        const which = body.lines ?? 'failed';
        const { signal } = abortWhenClientLeaves(response);
        const blob = await fileReads.run(workspaceId, () => copyLines(blobs, first, input, which), signal);
        const file = {
          purpose: 'batch',
          filename: `${first.id}-${which}.jsonl`,
          blob,
          expiresAfterSeconds: null,
        };
        const fileId = newId('file-');
        const { metadata: tags, pinned_prompts: _pinnedAnew, ...kept } = first.gateway_options;
        const identity = {
          ...getCallIdentity(request),
          fingerprint: fingerprintBody(JSON.stringify([first.id, which, body.completion_window ?? null, options])),
        };
        const { batch, replayed } = await batches.create(identity, toEventMetadata(request), {
          inputFileId: fileId,
          inputBytes: blob.sizeBytes,
          also: { streams: [fileId], run: async (unit) => void (await files.record(unit, fileId, file)) },
          endpoint: first.endpoint,
          completionWindow: body.completion_window ?? first.completion_window,
          metadata: first.metadata,
          outputExpiresAfterSeconds: first.output_expires_after_seconds,
          gatewayOptions: {
            ...kept,
            // The reserved members name the caller of the first batch. This request can come from another caller.
            ...recordable({ ...options, metadata: { ...withoutReserved(tags ?? {}), ...options.metadata } }, request),
            retry_of: first.id,
          },
          headers: inheritedFrom(request),
          target: (unit, batchId) => batchTargets.store(unit, { workspaceId, batchId }, credential),
        });
        // The first request has made its own copy.
        if (replayed) await blobs.remove(blob.blob);
        if (replayed) response.setHeader('idempotent-replayed', 'true');
        response.json(batch);
      },
    ),
  };
}

/** Refuses `validate_outputs` on endpoints whose requests have no schemas, like the contract of a new batch. */
export function refuseOutputChecks(options: GatewayOptions, endpoint: string): void {
  if (options.validate_outputs === undefined || hasSchemas(endpoint)) return;
  const param = 'gateway_options.validate_outputs';
  throw new GatewayError('invalid_request', 'invalid_value', withoutSchemas(`'${param}'`, endpoint), { param });
}
