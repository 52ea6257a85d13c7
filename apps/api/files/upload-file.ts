import path from 'node:path';
import { z } from 'zod';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { FileObject, FileUpload, FileUploadFields } from '#libs/contracts/batches/files.ts';
import { parseWith } from '#libs/contracts/parse.ts';
import type { Files } from '#libs/files/files.ts';
import { receiveUpload } from '#libs/http/bodies/multipart-upload.ts';
import type { UploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import type { Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { repeatErrors, storageErrors } from '../document-texts.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';

// Forms have no nested members: SDKs send `expires_after[anchor]` and `expires_after[seconds]`.
const UploadForm = z.record(z.string(), z.string()).transform((fields) => {
  const nested: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    const member = /^expires_after\[(anchor|seconds)\]$/.exec(name)?.[1];
    if (member === undefined) nested[name] = value;
    else nested['expires_after'] = { ...(nested['expires_after'] as object | undefined), [member]: value };
  }
  return nested;
});

export type UploadFileDeps = {
  files: Files;
  blobs: BlobStore;
  uploadBytesMax: number;
  uploadRate: UploadRate;
  /** Throws when the workspace has reached its storage limit. */
  admitUpload: (workspaceId: string) => Promise<void>;
};

/**
 * POST /v1/files: streams the file to the blob store and then records it. Parts can come in any order. Errors:
 * invalid_request, payload_too_large, quota_exceeded, storage_full. If the call is rejected, the received bytes are
 * removed. If it failed in the database, its COMMIT may have succeeded, and a repeated call would return the file; the
 * bytes are then left to the sweeper, which removes them if no file refers to them.
 */
export function uploadFile({ files, blobs, uploadBytesMax, uploadRate, admitUpload }: UploadFileDeps): Route {
  return {
    method: 'POST',
    path: '/v1/files',
    operationId: 'uploadFile',
    summary: 'Upload a file',
    description:
      'Send a multipart form with `purpose` (`batch`, `fine-tune`, …) and `file`. Files are stored unchanged and can be ' +
      'as large as `SLUICE_UPLOAD_MAX`. If you repeat a request with the same `Idempotency-Key`, no second file is ' +
      'created.',
    example: { purpose: 'batch', file: 'requests.jsonl' },
    errors: {
      ...storageErrors,
      file_too_large: 'the file exceeds `SLUICE_UPLOAD_MAX`',
      invalid_multipart: 'the form is malformed',
      unsupported_media_type: 'the body is not a multipart form',
      ...repeatErrors,
    },
    tag: 'Files',
    scope: 'files.write',
    request: { body: 'multipart', bodySchema: FileUpload },
    responses: { 200: { description: 'The file.', schema: FileObject } },
    handler: async (request, response) => {
      const identity = getCallIdentity(request);
      const limits = { fileSizeBytesMax: uploadBytesMax, rate: uploadRate };
      await admitUpload(identity.workspaceId);
      const upload = await receiveUpload(request, response, { store: blobs, fields: UploadForm, limits });
      await removeUnlessRecorded(blobs, upload.file.blob, async () => {
        const { purpose, expires_after: expiresAfter } = parseWith(FileUploadFields, upload.fields);
        if (purpose === 'batch') refuseForeignExtension(upload.file.filename, 'file');
        const { file, replayed } = await files.upload(identity, toEventMetadata(request), {
          purpose,
          filename: upload.file.filename,
          blob: upload.file,
          expiresAfterSeconds: expiresAfter?.seconds ?? null,
        });
        if (replayed) response.setHeader('idempotent-replayed', 'true');
        response.json(file);
      });
    },
  };
}

/**
 * Throws invalid_request for a name that does not belong to the input of a batch. SDKs make up names without an
 * extension (`upload`, `unknown_file`). The lines are validated later anyway.
 */
export function refuseForeignExtension(filename: string, param: string): void {
  if (['', '.jsonl'].includes(path.extname(filename).toLowerCase())) return;
  const message = `Invalid file format for Batch API: '${filename}'. Must be .jsonl, or have no extension.`;
  throw new GatewayError('invalid_request', null, message, { param });
}

/**
 * Removes the blob if `record` rejects the call. It remains after an error that leaves open whether the COMMIT, or that of
 * a concurrent repeat, succeeds. The sweeper removes a blob that no file refers to.
 */
export async function removeUnlessRecorded(
  blobs: Pick<BlobStore, 'remove'>,
  blob: string,
  record: () => Promise<void>,
): Promise<void> {
  try {
    await record();
  } catch (error) {
    const isOpen = !(error instanceof GatewayError) || error.kind === 'unavailable';
    if (!isOpen && error.code !== 'request_in_progress') await blobs.remove(blob);
    throw error;
  }
}
