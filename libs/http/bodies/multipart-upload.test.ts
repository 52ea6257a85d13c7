import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import OpenAI, { toFile } from 'openai';
import OpenAI6, { toFile as toFile6 } from 'openai6';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { exchange, serveForTest, testRoute, type TestServer } from '../http-test-kit.ts';
import { receiveUpload } from './multipart-upload.ts';

const UploadFields = z.strictObject({
  purpose: z.enum(['batch', 'fine-tune']),
  'expires_after[anchor]': z.literal('created_at').optional(),
  'expires_after[seconds]': z.coerce.number().int().min(3_600).max(2_592_000).optional(),
});
type Received = { blob: string; filename: string; bytes: number; sha256: string; purpose: string };

let folder: string;
let store: BlobStore;
let server: TestServer;
let storeFailure: Error | null = null;
let gate: Promise<void> | null = null;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sluice-upload-'));
  store = await createDiskBlobStore({ folder });
  const failing: Pick<BlobStore, 'put' | 'remove'> = {
    put: async (source, options) => {
      if (storeFailure !== null) throw storeFailure;
      await gate;
      return store.put(source, options);
    },
    remove: (blob) => store.remove(blob),
  };
  server = await serveForTest([
    testRoute({
      method: 'POST',
      path: '/v1/files',
      scope: 'files.write',
      request: { body: 'multipart' },
      handler: async (request, response) => {
        const limits = { fileSizeBytesMax: 60_000_000, rate: { bytesPerSecondMin: 1_000, windowMs: 400 } };
        const upload = await receiveUpload(request, response, { store: failing, fields: UploadFields, limits });
        const { blob, filename, sizeBytes, sha256 } = upload.file;
        const { purpose, ...rest } = upload.fields;
        response.json({ id: 'file-1', object: 'file', bytes: sizeBytes, filename, sha256, blob, purpose, rest });
      },
    }),
  ]);
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

async function storedFiles(): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile() && entry.name !== 'store-id').map((entry) => entry.name);
}

/** Runs a function that must not leave a file, whole or partial. */
async function leavingNothing<Result>(run: () => Promise<Result>): Promise<Result> {
  const before = await storedFiles();
  const result = await run();
  await expect.poll(storedFiles).toEqual(before);
  return result;
}

const headers = { authorization: 'Bearer all' };
async function send(
  form: FormData,
): Promise<{ status: number; body: Received & { error: { message: string; param: string; code: string } } }> {
  const response = await fetch(`${server.url}/v1/files`, { method: 'POST', headers, body: form });
  return { status: response.status, body: (await response.json()) as never };
}
function form(...parts: [string, string | Blob, string?][]): FormData {
  const data = new FormData();
  for (const [name, value, filename] of parts) {
    if (typeof value === 'string') data.append(name, value);
    else data.append(name, value, filename);
  }
  return data;
}
const blob = new Blob(['{"custom_id":"1"}\n']);

test('the file may come before the fields or after them', async () => {
  for (const parts of [
    form(['file', blob, 'in.jsonl'], ['purpose', 'batch']),
    form(['purpose', 'batch'], ['file', blob, 'in.jsonl']),
  ]) {
    const { status, body } = await send(parts);
    expect(status).toBe(200);
    expect(body).toMatchObject({ filename: 'in.jsonl', bytes: 18, purpose: 'batch' });
    expect((await buffer(await store.read(body.blob))).toString()).toBe('{"custom_id":"1"}\n');
  }
});

test.each([
  ['openai 7', (options: { apiKey: string; baseURL: string }) => ({ client: new OpenAI(options), toFile })],
  [
    'openai 6',
    (options: { apiKey: string; baseURL: string }) => ({
      client: new OpenAI6(options) as unknown as OpenAI,
      toFile: toFile6,
    }),
  ],
])('%s uploads with expires_after and a unicode name, in either order of keys', async (_name, make) => {
  const { client, toFile } = make({ apiKey: 'all', baseURL: `${server.url}/v1/` });
  const content = randomBytes(300_000);
  const expected = {
    filename: 'vstup žluťoučký 文.jsonl',
    bytes: 300_000,
    sha256: createHash('sha256').update(content).digest('hex'),
  };
  const file = await toFile(content, 'vstup žluťoučký 文.jsonl');
  const expires_after = { anchor: 'created_at', seconds: 3_600 } as const;
  expect(await client.files.create({ file, purpose: 'batch', expires_after })).toMatchObject({
    ...expected,
    rest: { 'expires_after[anchor]': 'created_at', 'expires_after[seconds]': 3_600 },
  });
  expect(
    await client.files.create({ purpose: 'batch', file: await toFile(content, 'vstup žluťoučký 文.jsonl') }),
  ).toMatchObject(expected);
});

test.each([
  ['no file', form(['purpose', 'batch']), 'file', 'missing_required_parameter'],
  ['no purpose', form(['file', blob, 'a.jsonl']), 'purpose', 'missing_required_parameter'],
  ['a wrong purpose', form(['file', blob, 'a.jsonl'], ['purpose', 'x']), 'purpose', 'invalid_value'],
  [
    'an unknown field',
    form(['file', blob, 'a.jsonl'], ['purpose', 'batch'], ['extra', '1']),
    'extra',
    'unknown_parameter',
  ],
  [
    'a field with the name of a prototype',
    form(['__proto__', 'x'], ['file', blob, 'a.jsonl'], ['purpose', 'batch']),
    '__proto__',
    'invalid_value',
  ],
  [
    'a member with the name of a prototype',
    form(['file', blob, 'a.jsonl'], ['purpose', 'batch'], ['expires_after[__proto__]', '1']),
    'expires_after[__proto__]',
    'invalid_value',
  ],
  [
    'a field twice',
    form(['purpose', 'batch'], ['file', blob, 'a.jsonl'], ['purpose', 'batch']),
    'purpose',
    'invalid_value',
  ],
  [
    'two files',
    form(['file', blob, 'a.jsonl'], ['file', blob, 'b.jsonl'], ['purpose', 'batch']),
    'file',
    'invalid_value',
  ],
  [
    'an expiry out of range',
    form(['file', blob, 'a'], ['purpose', 'batch'], ['expires_after[seconds]', '1']),
    'expires_after[seconds]',
    'integer_below_min_value',
  ],
  ['a long field', form(['purpose', 'x'.repeat(9_000)], ['file', blob, 'a']), 'purpose', 'invalid_value'],
  [
    'many fields',
    form(...Array.from({ length: 20 }, (_, n): [string, string] => [`f${n}`, '1'])),
    null,
    'invalid_multipart',
  ],
])('%s is refused by param and leaves nothing', async (_name, data, param, code) => {
  const { status, body } = await leavingNothing(() => send(data));
  expect(status).toBe(400);
  expect(body.error).toMatchObject({ param, code });
});

test('a file over the limit is 413, by its length or as it comes, and leaves nothing', async () => {
  const big = new Blob([Buffer.alloc(60_500_000)]);
  const { status, body } = await leavingNothing(() => send(form(['file', big, 'big'], ['purpose', 'batch'])));
  expect([status, body.error.code]).toEqual([413, 'file_too_large']);
  const huge = await exchange(server.port, head('X', 'Content-Length: 99000000\r\nExpect: 100-continue'));
  expect(huge).toMatch(/^HTTP\/1\.1 413 /);
});

function head(boundary: string, more = 'Transfer-Encoding: chunked'): string {
  return `POST /v1/files HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer all\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=${boundary}\r\n${more}\r\n\r\n`;
}
const chunk = (text: string): string => `${Buffer.byteLength(text, 'latin1').toString(16)}\r\n${text}\r\n`;
const filePart = (filename: string): string =>
  `--X\r\nContent-Disposition: form-data; name="file"; filename="${filename}"\r\n\r\nhello\r\n`;
const purposePart = '--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n';

test.each([
  ['../../etc/passwd', 'passwd'],
  ['C:\\secret\\a.jsonl', 'a.jsonl'],
  ['..', 'upload'],
])('the path in the filename %s is dropped', async (sent, kept) => {
  const answer = await exchange(server.port, head('X'), chunk(`${filePart(sent)}${purposePart}--X--\r\n`), '0\r\n\r\n');
  expect(answer).toContain(`"filename":"${kept}"`);
});

test.each([
  ['as browsers and SDKs write it', '%22'],
  ['as curl wrote it', '\\"'],
])('a quotation mark in the filename, %s, is kept', async (_by, sent) => {
  const body = chunk(`${filePart(`100%25 ${sent}final${sent}.jsonl`)}${purposePart}--X--\r\n`);
  const answer = await exchange(server.port, head('X'), body, '0\r\n\r\n');
  expect(answer).toContain(JSON.stringify({ filename: '100%25 "final".jsonl' }).slice(1, -1));
});

test.each([
  ['a filename with NUL', [chunk(`${filePart('a\0b')}${purposePart}--X--\r\n`), '0\r\n\r\n'], 400],
  ['a body without its final boundary', [chunk(`${purposePart}${filePart('a')}`), '0\r\n\r\n'], 400],
  [
    'a part without a name',
    [chunk(`--X\r\nContent-Disposition: form-data; filename="a"\r\n\r\n{}\r\n--X--\r\n`), '0\r\n\r\n'],
    400,
  ],
  ['a field without a name', [chunk(`--X\r\nContent-Disposition: form-data\r\n\r\n{}\r\n--X--\r\n`), '0\r\n\r\n'], 400],
  ['a file part that is cut off', [chunk(`${purposePart}${filePart('a').slice(0, -4)}`), '0\r\n\r\n'], 400],
  ['ten thousand parts', [chunk(purposePart.repeat(10_000)), '0\r\n\r\n'], 400],
  [
    'a part with an endless header',
    [chunk(`--X\r\nContent-Disposition: form-data; name="${'n'.repeat(200_000)}`), '0\r\n\r\n'],
    400,
  ],
  ['a body that is no multipart', [chunk('hello'.repeat(1_000)), '0\r\n\r\n'], 400],
  ['an upload that stops coming', [chunk(filePart('a').slice(0, -4))], 408],
])('%s is refused and leaves nothing', async (_name, pieces, status) => {
  const answer = await leavingNothing(() => exchange(server.port, head('X'), ...pieces));
  expect(answer).toMatch(new RegExp(`^HTTP/1\\.1 ${status} [^]*"type":"invalid_request_error","param":`));
});

test.each([
  ['no boundary', 'multipart/form-data', 400],
  ['a boundary of 71 characters', `multipart/form-data; boundary=${'x'.repeat(71)}`, 400],
  ['another type', 'application/json', 415],
])('%s in the content type is refused', async (_name, type, status) => {
  const response = await fetch(`${server.url}/v1/files`, {
    method: 'POST',
    headers: { ...headers, 'content-type': type },
    body: '--X--',
  });
  expect(response.status).toBe(status);
});

test('a form with any byte changed is taken or refused, and the server goes on', async () => {
  const form = Buffer.from(`${purposePart}${filePart('a')}--X--\r\n`, 'latin1');
  for (let position = 0; position < form.length; position += 1) {
    const body = Buffer.from(form);
    body[position] = (body[position] ?? 0) ^ (1 + ((position * 37) % 255));
    const { status } = await fetch(`${server.url}/v1/files`, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'multipart/form-data; boundary=X' },
      body,
    });
    expect([200, 400]).toContain(status);
  }
});

test('a full disk is 507, with the answer reaching a client that still sends', async () => {
  storeFailure = new GatewayError('storage_full', 'storage_full', 'The disk is full.');
  try {
    const { status, body } = await send(form(['file', new Blob([Buffer.alloc(5_000_000)]), 'a'], ['purpose', 'batch']));
    expect([status, body.error.code]).toEqual([507, 'storage_full']);
  } finally {
    storeFailure = null;
  }
});

test('a client that leaves in the middle leaves no file', async () => {
  await leavingNothing(async () => {
    const socket = connect(server.port, '127.0.0.1');
    socket.write(head('X', 'Content-Length: 50000000'));
    socket.write(filePart('a').slice(0, -7));
    socket.write(Buffer.alloc(2_000_000));
    await expect.poll(storedFiles).toContainEqual(expect.stringMatching(/\.partial$/));
    socket.destroy();
  });
});

test('50 MB go through at the pace of the store and arrive as they were sent', async () => {
  const megabyte = randomBytes(1_000_000);
  const hash = createHash('sha256');
  let given = 0;
  async function* body(): AsyncGenerator<Buffer> {
    yield Buffer.from('--X\r\nContent-Disposition: form-data; name="file"; filename="big.jsonl"\r\n\r\n');
    for (given = 0; given < 50; given += 1) {
      hash.update(megabyte);
      yield megabyte;
    }
    yield Buffer.from(`\r\n${purposePart}--X--\r\n`);
  }
  const { promise: opened, resolve: open } = Promise.withResolvers<void>();
  gate = opened;
  const answer = fetch(`${server.url}/v1/files`, {
    method: 'POST',
    headers: { ...headers, 'content-type': 'multipart/form-data; boundary=X' },
    body: body(),
    duplex: 'half',
  });
  // The store accepts nothing yet, so the sender must stop once sockets and stream buffers are full.
  let last = -1;
  const isAtRest = (): boolean => {
    const rested = given > 0 && given === last;
    last = given;
    return rested;
  };
  await expect.poll(isAtRest, { interval: 250, timeout: 5_000 }).toBe(true);
  expect(given).toBeLessThan(25);
  open();
  const received = (await (await answer).json()) as Received;
  expect(received).toMatchObject({ bytes: 50_000_000, sha256: hash.digest('hex') });
});
