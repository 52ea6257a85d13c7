import { z } from 'zod';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import {
  CompleteUploadRequest,
  CreateUploadRequest,
  UploadObject,
  UploadPartForm,
  UploadPartObject,
} from '#libs/contracts/uploads.ts';
import { fileTooLarge } from '#libs/blobs/file-too-large.ts';
import { receiveUpload } from '#libs/http/multipart-upload.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { UploadRate } from '#libs/http/watch-upload-rate.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';
import type { Uploads } from '#libs/files/uploads.ts';
import { mayBeRecorded, refuseForeignExtension } from './upload-file.ts';

type Deps = { uploads: Uploads; blobs: BlobStore; uploadBytesMax: number; uploadRate: UploadRate };

/** Of one part, as at OpenAI. */
const partBytesMax = 64 * 1_048_576;
const Params = z.object({ upload_id: z.string() });

/**
 * Files in parts, by the Uploads API of OpenAI (https://platform.openai.com/docs/api-reference/uploads), so that one that breaks goes
 * on. Errors: those of `Uploads`, and of `receiveUpload` for a part.
 */
export function uploadRoutes({ uploads, blobs, uploadBytesMax, uploadRate }: Deps): Route[] {
  const write = { method: 'POST', tag: 'Uploads', scope: 'files.write' } as const;
  // Uploads leave disk space for the results of running batches.
  const store: Pick<BlobStore, 'put' | 'remove'> = {
    put: (source, options) => blobs.put(source, { ...options, leavesReserve: true }),
    remove: (blob) => blobs.remove(blob),
  };
  const answer = { 200: { description: 'The upload.', schema: UploadObject } };
  return [
    {
      ...write,
      path: '/v1/uploads',
      operationId: 'createUpload',
      summary: 'Begin an upload whose parts are sent one by one',
      responses: answer,
      ...withInput({ body: CreateUploadRequest }, async ({ body }, request, response) => {
        const { filename, purpose, bytes, mime_type, sha256 = null, expires_after: expiresAfter } = body;
        if (bytes > uploadBytesMax) throw fileTooLarge(uploadBytesMax);
        if (purpose === 'batch') refuseForeignExtension(filename, 'filename');
        const upload = { filename, purpose, bytes, mime_type, sha256, expires_after: expiresAfter?.seconds ?? null };
        response.json(await uploads.create(callerOf(request).workspaceId, upload));
      }),
    },
    {
      ...write,
      path: '/v1/uploads/:upload_id/parts',
      operationId: 'addUploadPart',
      summary: 'Add a part to an upload',
      request: { body: 'multipart', bodySchema: UploadPartForm },
      responses: { 200: { description: 'The part.', schema: UploadPartObject } },
      handler: async (request, response) => {
        const { workspaceId } = callerOf(request);
        const id = String(request.params['upload_id']);
        // Nothing is received for an upload that takes no more parts.
        await uploads.admitPart(workspaceId, id);
        const limits = { fileSizeBytesMax: partBytesMax, rate: uploadRate };
        const fields = z.record(z.string(), z.string());
        const { file } = await receiveUpload(request, response, { store, fields, limits, part: 'data' });
        try {
          response.json(await uploads.addPart(workspaceId, id, file));
        } catch (error) {
          if (error instanceof GatewayError && !mayBeRecorded(error)) await blobs.remove(file.blob);
          throw error;
        }
      },
    },
    {
      ...write,
      path: '/v1/uploads/:upload_id/complete',
      operationId: 'completeUpload',
      summary: 'Make a file of the parts of an upload',
      responses: answer,
      ...withInput({ params: Params, body: CompleteUploadRequest }, async ({ params, body }, request, response) => {
        const wanted = { partIds: body.part_ids, md5: body.md5 ?? null };
        const { workspaceId } = callerOf(request);
        response.json(await uploads.complete(workspaceId, params.upload_id, wanted, eventMetadataOf(request)));
      }),
    },
    {
      ...write,
      path: '/v1/uploads/:upload_id/cancel',
      operationId: 'cancelUpload',
      summary: 'Cancel an upload; its parts are removed',
      responses: answer,
      ...withInput({ params: Params }, async ({ params }, request, response) => {
        response.json(await uploads.cancel(callerOf(request).workspaceId, params.upload_id));
      }),
    },
    {
      ...write,
      method: 'GET',
      scope: 'files.read',
      path: '/v1/uploads/:upload_id',
      operationId: 'retrieveUpload',
      summary: 'Retrieve an upload with the parts that it has',
      responses: answer,
      ...withInput({ params: Params }, async ({ params }, request, response) => {
        response.json(await uploads.retrieve(callerOf(request).workspaceId, params.upload_id));
      }),
    },
  ];
}
