import type { Request } from 'express';
import {
  credentialHeaders,
  readCredentials,
  namedProvider,
  type RequestedCredential,
  fingerprintCall,
} from '#libs/credentials/requested.ts';
import type { BatchTargets } from '#libs/credentials/batch-targets.ts';
import type { Batches } from '#libs/batches/batch/batches.ts';
import {
  BatchObject,
  CreateBatchRequest,
  type BatchEndpoint,
  type GatewayOptions,
} from '#libs/contracts/batches/batches.ts';
import type { FileRow } from '#libs/files/file-model.ts';
import type { Files } from '#libs/files/files.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { batchLimitErrors, repeatErrors, targetErrors } from '../document-texts.ts';
import { getCallMetadata, withLocked } from '../calls/call-metadata.ts';

const headers = ['metadata', ...credentialHeaders];

export type CreateBatchDeps = {
  batches: Batches;
  files: Files;
  batchTargets: BatchTargets;
  /** The scope that a call to the endpoint needs. A batch of such calls needs the same. */
  scopeOf: (endpoint: BatchEndpoint) => string;
};

/** The example body of POST /v1/batches and its dry run. */
export const exampleBatch = { input_file_id: 'file-abc', endpoint: '/v1/chat/completions', completion_window: '24h' };

/**
 * POST /v1/batches, in time that does not depend on the size of the input. Parameters are checked here (400). Errors of the
 * input file, including an unknown file id, make the batch fail later, like at OpenAI.
 */
export function createBatch({ batches, files, batchTargets, scopeOf }: CreateBatchDeps): Route {
  return {
    method: 'POST',
    path: '/v1/batches',
    operationId: 'createBatch',
    summary: 'Create a batch from an uploaded file',
    description:
      'Returns immediately, regardless of the size of the file. A worker then validates the file and calls its lines. ' +
      'The result of each line is in either the output file or the error file. If you repeat a request with the same ' +
      '`Idempotency-Key`, the first batch is returned.',
    example: exampleBatch,
    errors: { ...batchLimitErrors, ...targetErrors, ...repeatErrors },
    tag: 'Batches',
    scope: 'batches.write',
    responses: { 200: { description: 'The batch, with status `validating`.', schema: BatchObject } },
    ...withInput({ body: CreateBatchRequest, headers }, async ({ body }, request, response) => {
      const caller = getCaller(request);
      requireScope(caller, scopeOf(body.endpoint));
      const file = await files.find(caller.workspaceId, body.input_file_id);
      refuseOtherPurposes(file);
      const { workspaceId, defaults } = caller;
      const credentials = withOptions(readCredentials(request.headers), body.gateway_options);
      const credential = await batchTargets.choose({ workspaceId, credentials, defaults });
      const identity = { ...getCallIdentity(request), fingerprint: fingerprintCall(request, credentials) };
      const { batch, replayed } = await batches.create(identity, toEventMetadata(request), {
        inputFileId: body.input_file_id,
        inputBytes: file?.bytes ?? null,
        endpoint: body.endpoint,
        completionWindow: body.completion_window,
        metadata: body.metadata ?? null,
        outputExpiresAfterSeconds: body.output_expires_after?.seconds ?? null,
        gatewayOptions: recordable(body.gateway_options, request),
        headers: inheritedFrom(request),
        target: (unit, batchId) => batchTargets.store(unit, { workspaceId, batchId }, credential),
      });
      if (replayed) response.setHeader('idempotent-replayed', 'true');
      response.json(batch);
    }),
  };
}

/**
 * The options in the form that the log can store: a config can contain a provider's key, and the resolved target is
 * recorded instead. The lines inherit the metadata of the request; entries of the option take precedence over those
 * that are not locked.
 */
export function recordable(options: GatewayOptions, request: Request) {
  const { config: _resolved, metadata: _tags, ...kept } = options;
  const tags = withLocked(request, { ...getCallMetadata(request), ...options.metadata }) ?? {};
  return {
    ...kept,
    ...(Object.keys(tags).length === 0 ? {} : { metadata: tags }),
  };
}

/** The options of the batch name the target like headers do, and take precedence over them. */
export function withOptions(sent: RequestedCredential, options: GatewayOptions): RequestedCredential {
  const { virtual_key: slug, config } = options;
  const named = slug === undefined ? null : namedProvider(`@${slug.replace(/^@/, '')}`, 'gateway_options.virtual_key');
  return {
    ...sent,
    ...(named === null ? {} : { virtualKey: named.virtualKey, provider: null }),
    ...(config === undefined ? {} : { config: { value: config, param: 'gateway_options.config' } }),
  };
}

/** Refuses a file that was uploaded for another purpose. A missing file is reported later, by the validation. */
export function refuseOtherPurposes(file: FileRow | undefined): void {
  if (!file || file.purpose === 'batch') return;
  const message = `The file ${file.id} has the purpose '${file.purpose}'. Upload the input with the purpose 'batch'.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'input_file_id' });
}

/**
 * The headers that the lines inherit from the call that created the batch: its tracing headers, its key and its user.
 */
export function inheritedFrom(request: Request): Record<string, string> {
  const { traceId, spanId, spanName } = getContext(request);
  const { keyId, principal } = getCaller(request);
  return {
    trace_id: traceId,
    api_key_id: keyId,
    ...(principal.type === 'user' ? { user_id: principal.id } : {}),
    ...(spanId === null ? {} : { span_id: spanId }),
    ...(spanName === null ? {} : { span_name: spanName }),
  };
}
