import { z } from 'zod';
import type { BatchTargets } from '#libs/access/batch-target.ts';
import type { AccessSnapshot } from '#libs/access/access-snapshot.ts';
import { credentialHeaders, credentialsOf, type RequestCredentials } from '#libs/access/request-credentials.ts';
import { isTerminal } from '#libs/batches/batch.ts';
import type { BatchRow } from '#libs/batches/batch-model.ts';
import type { Batches } from '#libs/batches/batches.ts';
import { failedRequests, type FailedLines } from '#libs/batches/failed-requests.ts';
import type { BlobStore, StoredBlob } from '#libs/blobs/blob-store.ts';
import { RetryBatchRequest } from '#libs/contracts/batch-lines.ts';
import { BatchObject, type BatchEndpoint } from '#libs/contracts/batches.ts';
import type { BatchPlace } from '#libs/database/schema.ts';
import { fingerprintOf } from '#libs/event-log/idempotency.ts';
import type { FileRow } from '#libs/files/file-model.ts';
import type { Files } from '#libs/files/files.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/require-scope.ts';
import { withoutReserved } from '#libs/contracts/scalars.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { callIdentityOf, eventMetadataOf } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Turns } from '#libs/kernel/turns.ts';
import { inheritedFrom, recordable, withOptions } from './create-batch.ts';
import { batchLimitErrors, storageErrors } from '../document-texts.ts';

export type RetryDeps = {
  batches: Batches;
  files: Files;
  blobs: BlobStore;
  batchTargets: BatchTargets;
  snapshot: Pick<AccessSnapshot, 'findCredentialById'>;
  scopeOf: (endpoint: BatchEndpoint) => string;
  /** Throws if the workspace may not store more. */
  admitUpload: (workspaceId: string) => Promise<void>;
  /** Turns of those that read a whole input file. */
  fileReads: Turns;
};

/**
 * POST /v1/batches/{batch_id}/retry: a new batch of the lines of an ended one that have no good answer, with their
 * custom_ids. Its input file and the batch are recorded in one transaction, so that a repeated request makes neither again.
 * Errors: not_found; conflict (`batch_not_ended`, `nothing_to_retry`, `input_file_deleted`, `credentials_not_kept`), and
 * those of POST /v1/batches.
 */
export function retryBatch(deps: RetryDeps): Route {
  const { batches, files, blobs, batchTargets, scopeOf, admitUpload, fileReads } = deps;
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
    responses: { 200: { description: 'The new batch; `retry_of` names the first one.', schema: BatchObject } },
    ...withInput(
      {
        params: z.object({ batch_id: z.string() }),
        body: RetryBatchRequest.optional(),
        headers: ['metadata', ...credentialHeaders],
      },
      async ({ params, body = {} }, request, response) => {
        const caller = callerOf(request);
        const { workspaceId, defaults } = caller;
        const first = await batches.retrieve(workspaceId, params.batch_id);
        requireScope(caller, scopeOf(first.endpoint as BatchEndpoint));
        const input = await inputsOf(files, first);
        const options = body.gateway_options ?? {};
        const sent = withOptions(credentialsOf(request.headers), options);
        const credentials = namesTarget(sent) ? sent : { ...sent, ...sameTarget(deps, first) };
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
          ...callIdentityOf(request),
          fingerprint: fingerprintOf(JSON.stringify([first.id, which, body.completion_window ?? null, options])),
        };
        const { batch, replayed } = await batches.create(identity, eventMetadataOf(request), {
          inputFileId: fileId,
          inputBytes: blob.sizeBytes,
          recordInput: async (unit) => void (await files.record(unit, fileId, file)),
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

const conflict = (code: string, message: string): GatewayError =>
  new GatewayError('conflict', code, message, { param: 'batch_id' });

/** The files that the lines are read from. Throws conflict when the batch has none to repeat. */
async function inputsOf(files: Files, batch: BatchRow): Promise<{ input: FileRow; error: FileRow }> {
  if (!isTerminal(batch.status)) {
    const message = `The batch is ${batch.status}. Lines can be repeated once it has ended: wait for that, or cancel it.`;
    throw conflict('batch_not_ended', message);
  }
  if (batch.error_file_id === null) {
    const why =
      batch.status === 'failed'
        ? 'its input file was refused: see its errors, and upload it again'
        : 'no line of it failed';
    throw conflict('nothing_to_retry', `There is nothing to repeat in this batch: ${why}.`);
  }
  const input = await files.find(batch.workspace_id, batch.input_file_id);
  const error = await files.find(batch.workspace_id, batch.error_file_id);
  const isGone = (file: FileRow | undefined): boolean => file === undefined || file.deleted_at !== null;
  if (!input || !error || isGone(input) || isGone(error)) {
    const which = isGone(input) ? 'input' : 'error';
    throw conflict(
      'input_file_deleted',
      `The ${which} file of this batch was deleted, so its lines are not known any more.`,
    );
  }
  return { input, error };
}

/** Writes the chosen lines as a new blob. Throws conflict (`nothing_to_retry`) when there are none. */
async function copyLines(
  blobs: BlobStore,
  batch: BatchRow,
  files: { input: FileRow; error: FileRow },
  which: FailedLines,
): Promise<StoredBlob> {
  const [input, error] = [await blobs.read(files.input.blob), await blobs.read(files.error.blob)];
  try {
    const lines = failedRequests(batch.id, { input, error }, which);
    const blob = await blobs.put(lines, { leavesReserve: true });
    if (blob.sizeBytes > 0) return blob;
    await blobs.remove(blob.blob);
  } finally {
    input.destroy();
    error.destroy();
  }
  const other = which === 'failed' ? 'unfinished' : 'failed';
  throw conflict('nothing_to_retry', `No line of this batch is '${which}'. Try "lines": "${other}", or "all_failed".`);
}

const namesTarget = ({ virtualKey, provider, config, providerKey }: RequestCredentials): boolean =>
  virtualKey !== null || provider !== null || config !== null || providerKey !== null;

type Place = Pick<RequestCredentials, 'virtualKey' | 'provider' | 'customHost'>;

/** Where the first batch went, as credentials of a call. A stored config counts as it is now. Throws conflict. */
function sameTarget({ snapshot }: Pick<RetryDeps, 'snapshot'>, { target }: BatchRow): Partial<RequestCredentials> {
  const lost = (): GatewayError =>
    conflict(
      'credentials_not_kept',
      'The credentials that came with the first batch were deleted when it ended. Send them again, as headers or gateway_options.',
    );
  const placeOf = (place: BatchPlace): Partial<Place> => {
    if (place.type === 'none') return {};
    if (place.type === 'provider') {
      if (place.secret_id !== null) throw lost();
      return { provider: place.provider, customHost: place.custom_host };
    }
    const slug = snapshot.findCredentialById(place.virtual_key_id)?.slug;
    if (slug === undefined) throw lost();
    return { virtualKey: { slug, param: 'batch_id' } };
  };
  if (!('caller' in target)) return placeOf(target);
  if (typeof target.secret_id === 'string' && target.type === 'inline_config') throw lost();
  const value = target.type === 'config' ? target.config_id : target.config;
  return { ...placeOf(target.caller), config: { value, param: 'batch_id' } };
}
