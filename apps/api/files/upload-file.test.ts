import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { CommitOutcomeUnknownError } from '#libs/database/database-error.ts';
import type { Files } from '#libs/files/files.ts';
import { serveForTest } from '#libs/http/http-test-kit.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { defaultUploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import { uploadFile } from './upload-file.ts';

/** Uploads to a server whose transaction fails with this error; returns how many blobs are left. */
async function blobsAfter(failure: Error): Promise<number> {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-upload-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const blobs = await createDiskBlobStore({ folder });
  const files = { upload: () => Promise.reject(failure) } as unknown as Files;
  await using server = await serveForTest([
    uploadFile({ files, blobs, uploadBytesMax: 1_000, uploadRate: defaultUploadRate, admitUpload: async () => {} }),
  ]);
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new Blob(['{}\n']), 'in.jsonl');
  const response = await fetch(`${server.url}/v1/files`, {
    method: 'POST',
    body: form,
    headers: { authorization: 'Bearer all' },
  });
  expect(response.ok).toBe(false);
  let left = 0;
  for await (const _blob of blobs.list()) left += 1;
  return left;
}

test('the bytes of an upload that is refused are removed', async () => {
  expect(await blobsAfter(new GatewayError('conflict', 'idempotency_key_reused', 'no'))).toBe(0);
});

test('the bytes of an upload whose COMMIT may have got through are kept', async () => {
  const lost = new CommitOutcomeUnknownError(new Error('Connection terminated unexpectedly'));
  const away = new GatewayError('unavailable', 'database_unavailable', 'away', { cause: lost });
  for (const failure of [lost, away]) expect(await blobsAfter(failure)).toBe(1);
});
