import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { startScriptedPlatform } from './scripted-provider.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';

// The virtual key in the part `model` of a form: audio, and images that are edited.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform({ SLUICE_FORM_READ_MAX: '1MiB' });
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, { text: 'Hello.' }));
});

/** The form that the provider got, parsed by somebody else. */
async function formSeen(): Promise<Record<string, string | Buffer>> {
  const [request] = upstream.requests;
  const type = request?.headers['content-type'] ?? '';
  expect(request?.headers['content-length'] ?? String(request?.body.length)).toBe(String(request?.body.length));
  const form = await new Response(request?.body ?? '', { headers: { 'content-type': type } }).formData();
  const parts = [...form].map(async ([name, value]): Promise<[string, string | Buffer]> => [
    name,
    typeof value === 'string' ? value : Buffer.from(await value.arrayBuffer()),
  ]);
  return Object.fromEntries(await Promise.all(parts));
}

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
  });
  const audio = randomBytes(400_000);
  const speech = () => sdk.toFile(audio, 'speech.mp3');
  const model = '@scripted/whisper-1';

  test('is honoured before the file and after it, and the provider sees the plain model', async () => {
    for (const body of [
      { model, file: await speech(), language: 'en' },
      { file: await speech(), language: 'en', model },
    ]) {
      upstream.requests.length = 0;
      expect(await client.audio.transcriptions.create(body)).toMatchObject({ text: 'Hello.' });
      expect(await formSeen()).toEqual({ model: 'whisper-1', file: audio, language: 'en' });
    }
  });

  test('is honoured for edits of images, and the call is logged with its model', async () => {
    upstream.script((reply) => reply.json(200, { created: 1, data: [] }));
    const image = await sdk.toFile(audio, 'in.png', { type: 'image/png' });
    await client.images.edit({ image, prompt: 'A tree', model: '@scripted/gpt-image-1' });
    expect(await formSeen()).toEqual({ image: audio, prompt: 'A tree', model: 'gpt-image-1' });
    const logged = async (): Promise<unknown> => {
      const headers = { authorization: `Bearer ${platform.adminKey}` };
      const { data } = (await (await fetch(`${platform.baseUrl}/logs?limit=1`, { headers })).json()) as {
        data: object[];
      };
      return data[0];
    };
    await eventually(logged, (row) => (row as { operation?: string } | undefined)?.operation === 'images');
    expect(await logged()).toMatchObject({ model: 'gpt-image-1', virtual_key: 'scripted' });
  });

  test('wins over the header when it comes before the file', async () => {
    const headers = { 'x-gateway-virtual-key': 'nobody' };
    await client.audio.transcriptions.create({ model, file: await speech() }, { headers });
    expect(await formSeen()).toEqual({ model: 'whisper-1', file: audio });
  });

  test('after a file that is too large to be read first, the refusal says what to do', async () => {
    const file = await sdk.toFile(randomBytes(1_500_000), 'speech.mp3');
    const error = await getFailureCode(client.audio.transcriptions.create({ file, model }));
    expect(error).toMatchObject({
      status: 400,
      code: 'missing_credentials',
      message: expect.stringContaining(
        'The first 1048576 bytes of this body do not name a virtual key. Send it in the header x-gateway-virtual-key',
      ),
    });
    expect(upstream.requests).toEqual([]);
    await client.audio.transcriptions.create({ model, file });
    expect((await formSeen())['model']).toBe('whisper-1');
  });

  test('a virtual key that does not exist is reported before anything is sent', async () => {
    const error = await getFailureCode(
      client.audio.transcriptions.create({ file: await speech(), model: '@nobody/whisper-1' }),
    );
    expect(error).toMatchObject({ status: 400, code: 'virtual_key_not_found', param: 'model' });
    expect(upstream.requests).toEqual([]);
  });
});

test('a form that comes in small pieces, its length unknown, goes out whole', async () => {
  const { hostname, port } = new URL(platform.baseUrl);
  const content = 'x'.repeat(3_000);
  const form =
    `--b\r\ncontent-disposition: form-data; name="file"; filename="a.mp3"\r\n\r\n${content}\r\n` +
    '--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n@scripted/whisper-1\r\n--b--\r\n';
  const socket = connect(Number(port), hostname);
  socket.write(
    `POST /v1/audio/transcriptions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ${platform.adminKey}\r\n` +
      'content-type: multipart/form-data; boundary=b\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n',
  );
  for (let at = 0; at < form.length; at += 700) {
    const piece = form.slice(at, at + 700);
    socket.write(`${piece.length.toString(16)}\r\n${piece}\r\n`);
  }
  socket.write('0\r\n\r\n');
  const answer = Buffer.concat(await socket.toArray()).toString();
  expect(answer).toMatch(/^HTTP\/1\.1 200 /);
  expect(await formSeen()).toEqual({ file: Buffer.from(content), model: 'whisper-1' });
});
