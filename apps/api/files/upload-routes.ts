import type { Request, Response } from 'express';
import { z } from 'zod';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import {
  CompleteUploadRequest,
  CreateUploadRequest,
  UploadObject,
  UploadPartForm,
  UploadPartObject,
} from '#libs/contracts/batches/uploads.ts';
import { fileTooLarge } from '#libs/blobs/blob-errors.ts';
import { receiveUpload } from '#libs/http/bodies/multipart-upload.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { UploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import type { Uploads } from '#libs/files/uploads.ts';
import { storageErrors } from '../document-texts.ts';
import { refuseForeignExtension, removeUnlessRecorded } from './upload-file.ts';

export type UploadDeps = { uploads: Uploads; blobs: BlobStore; uploadBytesMax: number; uploadRate: UploadRate };

/** The maximum of one part, as at OpenAI. */
const partBytesMax = 64 * 1_048_576;
const Params = z.object({ upload_id: z.string() });

/**
 * Files in parts, like the Uploads API of OpenAI (https://platform.openai.com/docs/api-reference/uploads), so that an
 * interrupted upload can resume. Errors: those of `Uploads`, and of `receiveUpload` for a part.
 */
export function uploadRoutes(deps: UploadDeps): Route[] {
  const { uploads, uploadBytesMax } = deps;
  const write = { method: 'POST', tag: 'Uploads', scope: 'files.write' } as const;
  const answer = { 200: { description: 'The upload.', schema: UploadObject } };
  return [
    {
      ...write,
      path: '/v1/uploads',
      operationId: 'createUpload',
      summary: 'Start an upload in parts',
      description:
        'Uploads a large file in parts, so that you can resume after a lost connection. An upload expires one hour after ' +
        'its latest part, and 24 hours after its creation at the latest. If you send `sha256` and an upload of the same ' +
        'file was interrupted or has just completed, that upload is returned with its `parts` instead of a new one.',
      example: { filename: 'in.jsonl', purpose: 'batch', bytes: 52_428_800, mime_type: 'application/jsonl' },
      errors: {
        too_many_uploads: 'the workspace has reached its limit of incomplete uploads',
        storage_quota_exceeded:
          'the file would exceed the storage limit of the workspace, which includes announced uploads',
      },
      responses: answer,
      ...withInput({ body: CreateUploadRequest }, async ({ body }, request, response) => {
        const { filename, purpose, bytes, mime_type, sha256 = null, expires_after: expiresAfter } = body;
        if (bytes > uploadBytesMax) throw fileTooLarge(uploadBytesMax);
        if (purpose === 'batch') refuseForeignExtension(filename, 'filename');
        const upload = { filename, purpose, bytes, mime_type, sha256, expires_after: expiresAfter?.seconds ?? null };
        response.json(await uploads.create(getCaller(request).workspaceId, upload));
      }),
    },
    {
      ...write,
      path: '/v1/uploads/:upload_id/parts',
      operationId: 'addUploadPart',
      summary: 'Add a part to an upload',
      description:
        'Send a multipart form with `data` of at most 64 MiB. You can send parts in parallel and in any order.',
      example: { data: '(the bytes of the part)' },
      errors: {
        upload_not_pending: 'the upload is completed, cancelled or expired',
        storage_full: storageErrors.storage_full,
      },
      request: { body: 'multipart', bodySchema: UploadPartForm },
      responses: { 200: { description: 'The part.', schema: UploadPartObject } },
      handler: (request, response) => receivePart(deps, request, response),
    },
    {
      ...write,
      path: '/v1/uploads/:upload_id/complete',
      operationId: 'completeUpload',
      summary: 'Complete an upload',
      description:
        'List the parts in the order of the file. Their total size must equal the announced size and, if you send `md5` ' +
        'or `sha256`, their content must match it. Repeating the request returns the same file.',
      example: { part_ids: ['part_abc', 'part_def'] },
      errors: {
        upload_not_pending: 'the upload is cancelled or expired',
        invalid_value: 'the parts do not add up to the announced file',
      },
      responses: answer,
      ...withInput({ params: Params, body: CompleteUploadRequest }, async ({ params, body }, request, response) => {
        const wanted = { partIds: body.part_ids, md5: body.md5 ?? null };
        const { workspaceId } = getCaller(request);
        response.json(await uploads.complete(workspaceId, params.upload_id, wanted, toEventMetadata(request)));
      }),
    },
    {
      ...write,
      path: '/v1/uploads/:upload_id/cancel',
      operationId: 'cancelUpload',
      summary: 'Cancel an upload',
      description: 'Deletes the parts. Repeating the request has no effect.',
      errors: { upload_not_pending: 'the upload is completed: delete its file instead' },
      responses: answer,
      ...withInput({ params: Params }, async ({ params }, request, response) => {
        response.json(await uploads.cancel(getCaller(request).workspaceId, params.upload_id));
      }),
    },
    {
      ...write,
      method: 'GET',
      scope: 'files.read',
      path: '/v1/uploads/:upload_id',
      operationId: 'retrieveUpload',
      summary: 'Retrieve an upload with the parts that it has',
      description:
        'Returns the status, the received parts with their SHA-256, and the file once the upload is completed.',
      responses: answer,
      ...withInput({ params: Params }, async ({ params }, request, response) => {
        response.json(await uploads.retrieve(getCaller(request).workspaceId, params.upload_id));
      }),
    },
  ];
}

async function receivePart(
  { uploads, blobs, uploadRate }: UploadDeps,
  request: Request,
  response: Response,
): Promise<void> {
  const { workspaceId } = getCaller(request);
  const id = String(request.params['upload_id']);
  // No bytes are received for an upload that accepts no more parts.
  await uploads.admitPart(workspaceId, id);
  const limits = { fileSizeBytesMax: partBytesMax, rate: uploadRate };
  const fields = z.record(z.string(), z.string());
  const { file } = await receiveUpload(request, response, { store: blobs, fields, limits, part: 'data' });
  await removeUnlessRecorded(blobs, file.blob, async () => {
    response.json(await uploads.addPart(workspaceId, id, file));
  });
}
