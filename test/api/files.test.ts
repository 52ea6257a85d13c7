import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { FileListParams } from 'openai/resources/files';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { getFailureCode, sdks, watchCalls, type Client } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// FILE-1 to FILE-8.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
});
afterAll(() => platform.stop());

/** Sends a form with these parts, in this order, as they are; for what the SDKs would never send. */
async function postForm(
  parts: readonly [headers: string, body: string | Buffer][],
): Promise<{ status: number; body: Record<string, unknown> }> {
  const boundary = 'boundary-of-this-test';
  const form = Buffer.concat([
    ...parts.flatMap(([headers, body]) => [
      Buffer.from(`--${boundary}\r\n${headers}\r\n\r\n`),
      Buffer.from(body),
      Buffer.from('\r\n'),
    ]),
    Buffer.from(`--${boundary}--\r\n`),
  ]);
  const response = await fetch(`${platform.baseUrl}/files`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${platform.adminKey}`,
      'content-type': `multipart/form-data; boundary=${boundary}`,
    },
    body: form,
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const purposePart = (purpose: string): [string, string] => ['content-disposition: form-data; name="purpose"', purpose];
const filePart = (content: string, rest = 'filename="a.jsonl"'): [string, string] => [
  `content-disposition: form-data; name="file"; ${rest}`,
  content,
];

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });
  const upload = async (name: string, content: string | Buffer = '{}\n', purpose: 'batch' | 'fine-tune' = 'batch') =>
    await client.files.create({ file: await sdk.toFile(Buffer.from(content), name), purpose });

  test('the file may come before or after the purpose, as application/octet-stream', async () => {
    const sent = watchCalls(platform.baseUrl);
    const file = await sdk.toFile(Buffer.from('{"a":1}\n'), 'a.jsonl');
    expect(file.type).toBe('');
    const before = await client.files.create({ file, purpose: 'batch' });
    const after = await client.files.create({ purpose: 'batch', file });
    expect(after.id).not.toBe(before.id);
    for (const { id } of [before, after]) {
      expect(await (await client.files.content(id)).text()).toBe('{"a":1}\n');
    }
    expect(sent.to(/^POST \/v1\/files$/)).toHaveLength(2);
  });

  test('expires_after sets when the file expires; outside one hour to 30 days it is 400', async () => {
    const create = async (seconds: number, anchor = 'created_at') =>
      await client.files.create({
        file: await sdk.toFile(Buffer.from('{}\n'), 'a.jsonl'),
        purpose: 'batch',
        expires_after: { anchor: anchor as 'created_at', seconds },
      });
    for (const seconds of [3_600, 2_592_000]) {
      const file = await create(seconds);
      expect(file.expires_at).toBe(file.created_at + seconds);
    }
    const before = (await client.files.list()).data.length;
    for (const [seconds, code] of [
      [3_599, 'integer_below_min_value'],
      [2_592_001, 'integer_above_max_value'],
      [3_600.5, 'invalid_type'],
      ['soon' as unknown as number, 'invalid_type'],
    ] as const) {
      const error = await getFailureCode(create(seconds));
      expect(error).toBeInstanceOf(sdk.OpenAI.BadRequestError);
      expect(error).toMatchObject({ status: 400, param: 'expires_after.seconds', code });
    }
    const error = await getFailureCode(create(3_600, 'uploaded_at'));
    expect(error).toMatchObject({ status: 400, param: 'expires_after.anchor', code: 'invalid_value' });
    expect((await client.files.list()).data).toHaveLength(before);
  });

  test('content is served to Accept: application/binary, with its length and as a download', async () => {
    const sent = watchCalls(platform.baseUrl);
    const bytes = Buffer.from(Uint8Array.from({ length: 1_000 }, (_v, index) => index % 256));
    const { id } = await upload('bytes.jsonl', bytes);
    const response = await client.files.content(id);
    expect(sent.to(/content$/)[0]?.headers.toLowerCase()).toContain('application/binary');
    expect(response.status).toBe(200);
    expect(response.headers.get('content-length')).toBe('1000');
    expect(response.headers.get('content-type')).toBe('application/octet-stream');
    expect(response.headers.get('content-disposition')).toBe("attachment; filename*=UTF-8''bytes.jsonl");
    expect(response.headers.get('x-content-type-options')).toBe('nosniff');
    expect(Buffer.from(await response.arrayBuffer()).equals(bytes)).toBe(true);
  });

  test('lists take purpose, order, after and limit', async () => {
    const own = new sdk.OpenAI({ apiKey: await createWorkspace(platform), baseURL: platform.baseUrl });
    const ids: string[] = [];
    for (const purpose of ['batch', 'fine-tune', 'batch', 'batch', 'fine-tune'] as const) {
      const file = await sdk.toFile(Buffer.from('{}\n'), `${purpose}.jsonl`);
      ids.push((await own.files.create({ file, purpose })).id);
    }
    const [a, b, c, d, e] = ids;
    const list = async (query: FileListParams = {}) => (await own.files.list(query)).data.map(({ id }) => id);
    expect(await list()).toEqual([e, d, c, b, a]);
    expect(await list({ order: 'asc' })).toEqual([a, b, c, d, e]);
    expect(await list({ purpose: 'batch' })).toEqual([d, c, a]);
    expect(await list({ purpose: 'fine-tune', order: 'asc' })).toEqual([b, e]);
    expect(await list({ after: c as string })).toEqual([b, a]);
    expect(await list({ after: c as string, order: 'asc' })).toEqual([d, e]);
    expect(await list({ limit: 2 })).toEqual([e, d]);
    expect(await list({ purpose: 'vision' })).toEqual([]);
    const paged: string[] = [];
    for await (const { id } of own.files.list({ limit: 2 })) paged.push(id);
    expect(paged).toEqual([e, d, c, b, a]);
    expect(await own.get('/files', { query: { limit: 1, purpose: 'batch' } })).toEqual({
      object: 'list',
      data: [expect.objectContaining({ id: d, object: 'file' })],
      first_id: d,
      last_id: d,
      has_more: true,
    });
    for (const [query, param, code] of [
      [{ limit: 0 }, 'limit', 'integer_below_min_value'],
      [{ limit: 10_001 }, 'limit', 'integer_above_max_value'],
      [{ order: 'up' }, 'order', 'invalid_value'],
      [{ purpose: 'x' }, 'purpose', 'invalid_value'],
      [{ after: 'file-unknown' }, 'after', 'invalid_value'],
    ] as const) {
      expect(await getFailureCode(own.files.list(query as never))).toMatchObject({ status: 400, param, code });
    }
  });

  test('a deleted file is gone: retrieve, content and a second delete are 404', async () => {
    const { id } = await upload('gone.jsonl');
    expect(await client.files.delete(id)).toEqual({ id, object: 'file', deleted: true });
    for (const call of [
      () => client.files.retrieve(id),
      () => client.files.content(id),
      () => client.files.delete(id),
      () => client.files.retrieve('file-unknown'),
    ]) {
      const error = await getFailureCode(call());
      expect(error).toBeInstanceOf(sdk.OpenAI.NotFoundError);
      expect(error).toMatchObject({ status: 404, type: 'invalid_request_error', param: 'id', code: null });
      expect(error.message).toContain('No such File object: file-');
    }
    expect((await client.files.list()).data.map((file) => file.id)).not.toContain(id);
  });

  test('waitForProcessing returns after one look', async () => {
    const { id } = await upload('ready.jsonl');
    const sent = watchCalls(platform.baseUrl);
    expect(await client.files.waitForProcessing(id)).toMatchObject({ id, status: 'processed' });
    expect(sent.to(new RegExp(`^GET /v1/files/${id}$`))).toHaveLength(1);
  });

  test('status, exact bytes and a Unicode filename, in an object with every key', async () => {
    const content = 'é東🙂'.repeat(100);
    const filename = 'Prüfung 東京 🙂 100% (1).JSONL';
    const file = await upload(filename, content);
    expect(file).toEqual({
      id: expect.stringMatching(/^file-[0-9a-f]{32}$/),
      object: 'file',
      bytes: Buffer.byteLength(content),
      created_at: expect.any(Number),
      expires_at: null,
      filename,
      purpose: 'batch',
      status: 'processed',
      status_details: null,
    });
    expect(await client.files.retrieve(file.id)).toEqual(file);
    const empty = await upload('empty.jsonl', '');
    expect(empty.bytes).toBe(0);
    expect(await (await client.files.content(empty.id)).text()).toBe('');
  });

  test('an upload that is sent again after a lost reply makes one file', async () => {
    const file = await sdk.toFile(Buffer.from(`{"of":"${sdk.name}"}\n`), 'twice.jsonl');
    const first = await client.files.create({ file, purpose: 'batch' });
    const again = await client.files.create(
      { file, purpose: 'batch' },
      { headers: { 'X-Stainless-Retry-Count': '1' } },
    );
    expect(again).toEqual(first);
    expect((await client.files.list()).data.filter(({ filename }) => filename === 'twice.jsonl')).toHaveLength(
      sdk === sdks[0] ? 1 : 2,
    );
  });
});

describe.each(['batch', 'fine-tune'])('a file for %s', (purpose) => {
  // Python's SDK sends `upload` for bytes, others `unknown_file` (instructor) or `anonymous_file`, browsers `blob`.
  test.each(['upload', 'unknown_file', 'anonymous_file', 'blob'])('may be named %s', async (name) => {
    const taken = await postForm([filePart('{}\n', `filename="${name}"`), purposePart(purpose)]);
    expect(taken).toMatchObject({ status: 200, body: { filename: name, purpose, bytes: 3 } });
  });

  test.each(['', 'filename=""'])('may have no name at all: %j', async (rest) => {
    const taken = await postForm([filePart('{}\n', rest), purposePart(purpose)]);
    expect(taken).toMatchObject({ status: 200, body: { filename: 'upload', purpose, bytes: 3 } });
  });
});

test('a batch input with an extension must be named .jsonl; files of other purposes may have any name', async () => {
  const refused = await postForm([filePart('{}', 'filename="a.json"'), purposePart('batch')]);
  expect(refused).toEqual({
    status: 400,
    body: {
      error: {
        message: "Invalid file format for Batch API: 'a.json'. Must be .jsonl, or have no extension.",
        type: 'invalid_request_error',
        param: 'file',
        code: null,
      },
    },
  });
  expect((await postForm([filePart('{}', 'filename="a.csv"'), purposePart('batch')])).status).toBe(400);
  const taken = await postForm([filePart('%PDF', 'filename="a.pdf"'), purposePart('user_data')]);
  expect(taken).toMatchObject({ status: 200, body: { filename: 'a.pdf', purpose: 'user_data', bytes: 4 } });
});

test('a form that is not as it should be is refused, and leaves no file and no bytes', async () => {
  const names = async (): Promise<string[]> => {
    const entries = await readdir(path.join(platform.dataDir, 'blobs'), { recursive: true, withFileTypes: true });
    // The seal writes files with other names meanwhile.
    return entries.filter((entry) => entry.isFile() && /^[0-9a-f]{32}/.test(entry.name)).map((entry) => entry.name);
  };
  const list = async (): Promise<unknown> => {
    const headers = { authorization: `Bearer ${platform.adminKey}` };
    return await (await fetch(`${platform.baseUrl}/files`, { headers })).json();
  };
  const [filesBefore, blobsBefore] = [await list(), await names()];
  const cases: [parts: [string, string][], param: string | null, code: string][] = [
    [[filePart('{}')], 'purpose', 'missing_required_parameter'],
    [[purposePart('batch')], 'file', 'missing_required_parameter'],
    [[filePart('{}'), purposePart('nonsense')], 'purpose', 'invalid_value'],
    [[filePart('{}'), purposePart('batch_output')], 'purpose', 'invalid_value'],
    [[filePart('{}'), filePart('{}'), purposePart('batch')], 'file', 'invalid_value'],
    [[filePart('{}'), purposePart('batch'), purposePart('batch')], 'purpose', 'invalid_value'],
    [[filePart('{}', `filename="${'x'.repeat(513)}"`), purposePart('batch')], 'file', 'invalid_value'],
  ];
  for (const [parts, param, code] of cases) {
    const { status, body } = await postForm(parts);
    expect({ status, ...body }).toEqual({
      status: 400,
      error: { message: expect.any(String), type: 'invalid_request_error', param, code },
    });
  }
  expect(await list()).toEqual(filesBefore);
  expect(new Set(await names())).toEqual(new Set(blobsBefore));
});

test('content of 5 MiB comes back byte for byte to both SDKs', async () => {
  const bytes = Buffer.allocUnsafe(5 * 1_048_576);
  for (let at = 0; at < bytes.length; at += 4) bytes.writeUInt32LE(Math.imul(at, 2_654_435_761) >>> 0, at);
  const wanted = createHash('sha256').update(bytes).digest('hex');
  for (const sdk of sdks) {
    const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    const file = await client.files.create({ file: await sdk.toFile(bytes, 'big.jsonl'), purpose: 'batch' });
    const back = Buffer.from(await (await client.files.content(file.id)).arrayBuffer());
    expect(createHash('sha256').update(back).digest('hex')).toBe(wanted);
  }
});

test('a download that broke can be taken up by Range, and says what the whole must be', async () => {
  const file = await postForm([purposePart('batch'), filePart('0123456789')]);
  const get = async (headers: Record<string, string>) => {
    const response = await fetch(`${platform.baseUrl}/files/${String(file.body['id'])}/content`, {
      headers: { authorization: `Bearer ${platform.adminKey}`, ...headers },
    });
    return [response.status, response.headers.get('content-range'), await response.text(), response.headers] as const;
  };
  const [status, range, text, headers] = await get({});
  expect([status, range, text, headers.get('accept-ranges')]).toEqual([200, null, '0123456789', 'bytes']);
  const digest = createHash('sha256').update('0123456789').digest();
  expect(headers.get('repr-digest')).toBe(`sha-256=:${digest.toString('base64')}:`);
  const etag = headers.get('etag') ?? '';
  expect(etag).toBe(`"${digest.toString('hex')}"`);
  const answers: [headers: Record<string, string>, status: number, range: string | null, text: string][] = [
    [{ range: 'bytes=4-' }, 206, 'bytes 4-9/10', '456789'],
    [{ range: 'bytes=2-3' }, 206, 'bytes 2-3/10', '23'],
    [{ range: 'bytes=8-99' }, 206, 'bytes 8-9/10', '89'],
    [{ range: 'bytes=-3' }, 206, 'bytes 7-9/10', '789'],
    [{ range: 'bytes=4-', 'if-range': etag }, 206, 'bytes 4-9/10', '456789'],
    [{ range: 'bytes=4-', 'if-range': '"another"' }, 200, null, '0123456789'],
    [{ range: 'bytes=0-1,4-5' }, 200, null, '0123456789'],
    [{ range: 'bytes=5-4' }, 200, null, '0123456789'],
    [{ range: 'lines=1-2' }, 200, null, '0123456789'],
  ];
  for (const [sent, ...wanted] of answers) expect([sent, ...(await get(sent)).slice(0, 3)]).toEqual([sent, ...wanted]);
  for (const sent of ['bytes=10-', 'bytes=99-100', 'bytes=-0']) {
    const refused = await get({ range: sent });
    expect(refused.slice(0, 2)).toEqual([416, 'bytes */10']);
    expect(JSON.parse(refused[2])).toMatchObject({ error: { code: 'range_not_satisfiable', param: 'range' } });
  }
});
