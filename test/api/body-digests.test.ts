import { createHash } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createBatch, ended, toJsonl, chatLine } from './batch-kit.ts';
import { sdks } from './sdk.ts';

type Digests = {
  id: string;
  sha256_salt: string | null;
  request_sha256: string | null;
  answer_sha256: string | null;
  batch_line: number | null;
};

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

async function send(
  method: string,
  path: string,
  body?: NonNullable<RequestInit['body']>,
  headers: Record<string, string> = {},
) {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: {
      authorization: `Bearer ${platform.adminKey}`,
      ...(typeof body === 'string' ? { 'content-type': 'application/json' } : {}),
      ...headers,
    },
    ...(body === undefined ? {} : { body }),
  });
  return { status: response.status, bytes: Buffer.from(await response.arrayBuffer()) };
}

const json = async (path: string): Promise<{ data: Digests[] }> =>
  JSON.parse((await send('GET', path)).bytes.toString()) as { data: Digests[] };

async function setHashing(isOn: boolean): Promise<void> {
  const { status } = await send(
    'PUT',
    '/admin/workspaces/default',
    JSON.stringify({ defaults: { hash_bodies: isOn } }),
  );
  expect(status).toBe(200);
}

/** Sends a call, and returns its record and its answer. */
async function made(trace: string, path: string, body?: NonNullable<RequestInit['body']>, method = 'POST') {
  const answer = await send(method, path, body, { 'x-gateway-trace-id': trace });
  const { data } = await eventually(
    () => json(`/logs?trace_id=${trace}`),
    (list) => list.data.length === 1,
  );
  return { ...answer, record: data[0] as Digests };
}

const digest = ({ sha256_salt: salt }: Digests, bytes: string | Uint8Array): string =>
  createHash('sha256')
    .update(Buffer.from(salt ?? '', 'hex'))
    .update(bytes)
    .digest('hex');

/** Spaces and the order of members show whether the very bytes were hashed. */
const chat = (more: object = {}): string =>
  JSON.stringify({ messages: [{ role: 'user', content: 'Wörter' }], model: '@simulator/sim-small', ...more }, null, 1);

test('without the setting there are no digests', async () => {
  const { record } = await made('plain', '/chat/completions', chat());
  expect(record).toMatchObject({ sha256_salt: null, request_sha256: null, answer_sha256: null });
});

test('whole answers, errors and streams have the digests of the bytes that were sent, each with its own salt', async () => {
  await setHashing(true);
  const salts = new Set<string | null>();
  const bodies = {
    whole: chat(),
    again: chat(),
    stream: chat({ stream: true }),
    failed: chat({ model: '@simulator/sim-fault-503' }),
    broken: chat({ stream: true, model: '@simulator/sim-fault-reset' }),
  };
  for (const [trace, body] of Object.entries(bodies)) {
    const { bytes, record } = await made(trace, '/chat/completions', body);
    expect(record.request_sha256).toBe(digest(record, body));
    expect([trace, record.answer_sha256]).toEqual([trace, digest(record, bytes)]);
    salts.add(record.sha256_salt);
  }
  expect(salts.size).toBe(5);
  const config = JSON.stringify({ targets: [{ virtual_key: 'nothing' }] });
  const refused = await send('POST', '/chat/completions', chat(), {
    'x-gateway-trace-id': 'refused',
    'x-gateway-config': config,
  });
  const { data } = await eventually(
    () => json('/logs?trace_id=refused'),
    (list) => list.data.length === 1,
  );
  const [record] = data as [Digests];
  expect(record.answer_sha256).toBe(digest(record, refused.bytes));
});

test('calls that pass through have digests of forms, streams and binary answers', async () => {
  await setHashing(true);
  const input = JSON.stringify({ model: '@simulator/sim-small', input: 'pass this on', stream: true });
  const streamed = await made('relayed', '/responses', input);
  expect(streamed.record.request_sha256).toBe(digest(streamed.record, input));
  expect(streamed.record.answer_sha256).toBe(digest(streamed.record, streamed.bytes));
  const boundary = 'one-boundary';
  const part = (name: string, value: string): string =>
    `--${boundary}\r\ncontent-disposition: form-data; ${name}\r\n\r\n${value}\r\n`;
  const form = `${part('name="model"', '@simulator/sim-transcribe')}${part('name="file"; filename="a.wav"', 'x'.repeat(400_000))}--${boundary}--\r\n`;
  const answer = await send('POST', '/audio/transcriptions', Buffer.from(form), {
    'content-type': `multipart/form-data; boundary=${boundary}`,
    'x-gateway-trace-id': 'form',
  });
  const { data } = await eventually(
    () => json('/logs?trace_id=form'),
    (list) => list.data.length === 1,
  );
  const [record] = data as [Digests];
  expect([answer.status, record.request_sha256]).toEqual([200, digest(record, form)]);
  expect(record.answer_sha256).toBe(digest(record, answer.bytes));
  const speech = JSON.stringify({ model: '@simulator/sim-speech', input: 'say this', voice: 'alloy' });
  const spoken = await made('spoken', '/audio/speech', speech);
  expect(spoken.record.answer_sha256).toBe(digest(spoken.record, spoken.bytes));
});

test('lines of a batch have the digests of their bodies in the input and output file', async () => {
  await setHashing(true);
  const [sdk] = sdks;
  if (sdk === undefined) throw new Error('no client package');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const input = toJsonl(Array.from({ length: 20 }, (_, index) => chatLine(`line-${index}`)));
  const batch = await ended(client, await createBatch(sdk, client, input));
  const output = (await (await client.files.content(batch.output_file_id ?? '')).text()).trimEnd().split('\n');
  const { data } = await eventually(
    () => json(`/logs?batch_id=${batch.id}&limit=100`),
    (list) => list.data.length === 20,
  );
  const lines = input.split('\n');
  for (const record of data) {
    const line = (record.batch_line ?? 0) - 1;
    const [, sent] = /"body":(.*)\}$/.exec(lines[line] ?? '') ?? [];
    const [, answered] = /"body":(.*)\},"error":null\}$/.exec(output[line] ?? '') ?? [];
    expect([line, record.request_sha256]).toEqual([line, digest(record, sent ?? '')]);
    expect([line, record.answer_sha256]).toEqual([line, digest(record, answered ?? '')]);
  }
  expect(new Set(data.map(({ sha256_salt }) => sha256_salt)).size).toBe(20);
});
