import { createHash } from 'node:crypto';
import path from 'node:path';
import { Readable } from 'node:stream';
import { sql } from 'kysely';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { checkBlobs } from '#libs/files/check-blobs.ts';
import { createFiles } from '#libs/files/files.ts';
import { createUploads, sweepUploads } from '#libs/files/uploads.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// Files that are sent in parts.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false, environment: { SLUICE_STORED_MAX: '1MiB' } });
});
afterAll(() => platform?.stop());

type Upload = {
  id: string;
  status: string;
  created_at: number;
  expires_at: number;
  file: { id: string } | null;
  parts?: { sha256: string }[];
};

async function send(method: string, url: string, body?: object): Promise<{ status: number; body: Upload }> {
  const response = await fetch(`${platform.baseUrl}${url}`, {
    method,
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Upload };
}

const text = Array.from({ length: 40 }, (_, index) => `{"custom_id":"line-${index}"}\n`).join('');
const [head, tail] = [text.slice(0, 500), text.slice(500)];
const about = { filename: 'in.jsonl', purpose: 'batch', mime_type: 'application/jsonl' } as const;
const hashOf = (algorithm: 'md5' | 'sha256', content: string): string =>
  createHash(algorithm).update(content).digest('hex');

describe.each(sdks)('$name', ({ OpenAI, toFile }) => {
  let client: Client;
  beforeAll(() => {
    client = new OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey, maxRetries: 0 });
  });
  const begin = (bytes = text.length) => client.uploads.create({ ...about, bytes });
  const add = async (id: string, content: string) =>
    await client.uploads.parts.create(id, { data: await toFile(Buffer.from(content), 'part') });

  test('parts that come in any order become one file, in the order that they are named in', async () => {
    const upload = await begin();
    expect(upload).toMatchObject({ object: 'upload', status: 'pending', bytes: text.length, file: null });
    expect(upload.expires_at - upload.created_at).toBe(3_600);
    const [second, first] = [await add(upload.id, tail), await add(upload.id, head)];
    expect(first).toMatchObject({ object: 'upload.part', upload_id: upload.id });
    const wanted = { part_ids: [first.id, second.id], md5: hashOf('md5', text) };
    const done = await client.uploads.complete(upload.id, wanted);
    expect(done).toMatchObject({ status: 'completed', file: { object: 'file', bytes: text.length, purpose: 'batch' } });
    const file = done.file?.id ?? '';
    expect(await (await client.files.content(file)).text()).toBe(text);
    expect((await client.uploads.complete(upload.id, wanted)).file?.id).toBe(file);
    expect(await getFailureCode(add(upload.id, 'more'))).toMatchObject({ status: 409, code: 'upload_not_pending' });
  });

  test('parts that are not the file are refused, and the upload can still be completed', async () => {
    const upload = await begin();
    const [first, second] = [await add(upload.id, head), await add(upload.id, tail)];
    const complete = (part_ids: string[], md5?: string) =>
      client.uploads.complete(upload.id, { part_ids, ...(md5 === undefined ? {} : { md5 }) });
    expect(await getFailureCode(complete([first.id]))).toMatchObject({ status: 400, param: 'part_ids' });
    expect(await getFailureCode(complete([first.id, first.id]))).toMatchObject({ status: 400, param: 'part_ids[1]' });
    expect(await getFailureCode(complete([second.id, first.id], hashOf('md5', text)))).toMatchObject({
      status: 400,
      param: 'md5',
    });
    expect(await getFailureCode(add(upload.id, text + text))).toMatchObject({ status: 400, param: 'data' });
    expect(await complete([first.id, second.id], hashOf('md5', text))).toMatchObject({ status: 'completed' });
  });

  test('a cancelled upload is no file, and takes no more', async () => {
    const upload = await begin();
    const part = await add(upload.id, text);
    expect(await client.uploads.cancel(upload.id)).toMatchObject({ status: 'cancelled', file: null });
    expect(await client.uploads.cancel(upload.id)).toMatchObject({ status: 'cancelled' });
    expect(await getFailureCode(client.uploads.complete(upload.id, { part_ids: [part.id] }))).toMatchObject({
      status: 409,
    });
  });

  test('another workspace knows nothing of it', async () => {
    const apiKey = await createWorkspace(platform);
    const theirs = new OpenAI({ baseURL: platform.baseUrl, apiKey, maxRetries: 0 });
    const upload = await begin();
    expect(await getFailureCode(theirs.uploads.cancel(upload.id))).toMatchObject({ status: 404 });
    const part = theirs.uploads.parts.create(upload.id, { data: await toFile(Buffer.from('x'), 'part') });
    expect(await getFailureCode(part)).toMatchObject({ status: 404 });
  });
});

test('with its hash, an upload that broke is found with its parts, and later its file', async () => {
  const named = { ...about, bytes: text.length, sha256: hashOf('sha256', text) };
  const { body: upload } = await send('POST', '/uploads', named);
  expect(upload).toMatchObject({ status: 'pending', parts: [] });
  const form = new FormData();
  form.set('data', new Blob([head]), 'part');
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  const added = await fetch(`${platform.baseUrl}/uploads/${upload.id}/parts`, { method: 'POST', headers, body: form });
  expect(added.status).toBe(200);
  const { body: again } = await send('POST', '/uploads', named);
  expect(again).toMatchObject({ id: upload.id, parts: [{ bytes: 500, sha256: hashOf('sha256', head) }] });
  const wrong = new FormData();
  wrong.set('data', new Blob(['x'.repeat(tail.length)]), 'part');
  const { id: wrongPart } = (await (
    await fetch(`${platform.baseUrl}/uploads/${upload.id}/parts`, { method: 'POST', headers, body: wrong })
  ).json()) as { id: string };
  const { id: firstPart } = (await added.json()) as { id: string };
  expect(await send('POST', `/uploads/${upload.id}/complete`, { part_ids: [firstPart, wrongPart] })).toMatchObject({
    status: 400,
    body: { error: { param: 'sha256' } },
  });
  const right = new FormData();
  right.set('data', new Blob([tail]), 'part');
  const { id: lastPart } = (await (
    await fetch(`${platform.baseUrl}/uploads/${upload.id}/parts`, { method: 'POST', headers, body: right })
  ).json()) as { id: string };
  const { body: done } = await send('POST', `/uploads/${upload.id}/complete`, { part_ids: [firstPart, lastPart] });
  expect((await send('POST', '/uploads', named)).body).toMatchObject({ id: upload.id, file: { id: done.file?.id } });
  // A file that was deleted is uploaded anew.
  await send('DELETE', `/files/${done.file?.id}`);
  expect((await send('POST', '/uploads', named)).body).toMatchObject({ status: 'pending', file: null });
});

test('a part for an upload that has ended is refused before it is received', async () => {
  const { body: upload } = await send('POST', '/uploads', { ...about, bytes: 9 });
  await send('POST', `/uploads/${upload.id}/cancel`);
  // Of a body that is no form not even the first bytes are read.
  expect(await send('POST', `/uploads/${upload.id}/parts`, {})).toMatchObject({
    status: 409,
    body: { error: { code: 'upload_not_pending' } },
  });
});

test('completions at the same time copy the parts once, and get the same file', async () => {
  const { db } = platform.database;
  const eventLog = createEventLog(db);
  const store = await createDiskBlobStore({ folder: path.join(platform.dataDir, 'blobs') });
  let copies = 0;
  const blobs: BlobStore = {
    ...store,
    join: (...given) => {
      copies += 1;
      return store.join(...given);
    },
  };
  const files = createFiles({ db, eventLog, blobs });
  const uploads = createUploads({ db, eventLog, blobs, files, storedBytesMax: 1_048_576 });
  const upload = await uploads.create('default', { ...about, bytes: text.length, sha256: null, expires_after: null });
  const part = await uploads.addPart('default', upload.id, await store.put(Readable.from([Buffer.from(text)])));
  const metadata = { actor: { type: 'system' as const, id: 'test' } };
  const complete = () => uploads.complete('default', upload.id, { partIds: [part.id], md5: null }, metadata);
  const completed = await Promise.all([complete(), complete(), complete()]);
  expect(new Set(completed.map(({ file }) => file?.id)).size).toBe(1);
  expect(copies).toBe(1);
});

test('a part whose bytes are gone is found by the check of the blobs', async () => {
  const { db } = platform.database;
  const { body: upload } = await send('POST', '/uploads', { ...about, bytes: 9 });
  const gone = { blob: '0'.repeat(32), bytes: 9, sha256: hashOf('sha256', 'gone') };
  await db
    .insertInto('upload_part')
    .values({ id: 'part_gone', upload_id: upload.id, workspace_id: 'default', ...gone })
    .execute();
  const blobs = await createDiskBlobStore({ folder: path.join(platform.dataDir, 'blobs') });
  const missing = [];
  for await (const finding of checkBlobs({ db, blobs }, () => {}))
    if (finding.problem === 'missing') missing.push(finding);
  expect(missing).toEqual([
    {
      problem: 'missing',
      blob: gone.blob,
      sizeBytes: 9,
      owner: { type: 'upload', id: upload.id, workspaceId: 'default' },
    },
  ]);
  await send('POST', `/uploads/${upload.id}/cancel`);
});

test('an upload ends an hour after its last part, and a day after its creation at the latest', async () => {
  const { db } = platform.database;
  const { id } = (await send('POST', '/uploads', { ...about, bytes: 9 })).body;
  const addAfter = async (age: string): Promise<number> => {
    await sql`update upload set created_at = clock_timestamp() - ${age}::interval,
      expires_at = clock_timestamp() + interval '1 minute' where id = ${id}`.execute(db);
    const form = new FormData();
    form.set('data', new Blob(['x']), 'part');
    const headers = { authorization: `Bearer ${platform.adminKey}` };
    await fetch(`${platform.baseUrl}/uploads/${id}/parts`, { method: 'POST', headers, body: form });
    const { created_at: createdAt, expires_at: expiresAt } = (await send('GET', `/uploads/${id}`)).body;
    return Math.round((expiresAt - createdAt) / 60);
  };
  expect(await addAfter('50 minutes')).toBe(110);
  expect(await addAfter('23 hours 50 minutes')).toBe(24 * 60);
});

test('what is announced counts as stored, and an expired upload leaves nothing', async () => {
  const large = { ...about, bytes: 1_000_000 };
  const refused = { status: 429, body: { error: { code: 'storage_quota_exceeded' } } };
  // However many begin at the same time.
  const answers = await Promise.all(Array.from({ length: 4 }, () => send('POST', '/uploads', large)));
  expect(answers.filter(({ status }) => status === 200)).toHaveLength(1);
  expect(answers.find(({ status }) => status === 429)).toMatchObject(refused);
  const upload = answers.find(({ status }) => status === 200)?.body as Upload;
  const form = new FormData();
  form.set('data', new Blob([head]), 'part');
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  await fetch(`${platform.baseUrl}/uploads/${upload.id}/parts`, { method: 'POST', headers, body: form });
  const { db } = platform.database;
  await sql`update upload set expires_at = clock_timestamp() - interval '10 minutes'`.execute(db);
  expect((await send('GET', `/uploads/${upload.id}`)).body).toMatchObject({ status: 'expired' });
  const blobs = await createDiskBlobStore({ folder: path.join(platform.dataDir, 'blobs') });
  expect((await sweepUploads(db, blobs)).size).toBeGreaterThan(0);
  expect((await send('GET', `/uploads/${upload.id}`)).body).toMatchObject({ status: 'expired', parts: [] });
  await sql`update upload set expires_at = clock_timestamp() - interval '2 days'`.execute(db);
  await sweepUploads(db, blobs);
  expect((await send('GET', `/uploads/${upload.id}`)).status).toBe(404);
});
