import { createHash } from 'node:crypto';
import { inflateSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { dataOf, startTestSimulator } from '#test/test-simulator.ts';

const { url, openai, post } = await startTestSimulator();
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');
const file = (bytes: Uint8Array<ArrayBuffer>, name: string) => new File([bytes], name);
const noise = Uint8Array.from({ length: 70_000 }, (_, at) => (at * 7919) % 256);

test('images are real PNG files, edits tell which bytes came', async () => {
  const { data } = await openai.images.generate({ model: 'gpt-image-1', prompt: 'a cat', n: 2 });
  const png = Buffer.from(data?.[0]?.b64_json ?? '', 'base64');
  expect(png.subarray(1, 4).toString()).toBe('PNG');
  const dataAt = png.indexOf('IDAT') + 4;
  expect(inflateSync(png.subarray(dataAt, dataAt + png.readUInt32BE(dataAt - 8)))).toHaveLength(8 * 25);
  expect(data?.[1]?.b64_json).not.toBe(data?.[0]?.b64_json);
  const edited = await openai.images.edit({ model: 'gpt-image-1', image: file(noise, 'in.png'), prompt: 'sharper' });
  expect(edited).toMatchObject({
    data: [{ b64_json: expect.any(String) }],
    received: { bytes: 70_000, sha256: sha256(noise) },
  });
});

test('speech is bytes in pieces, as many as asked, the same every time', async () => {
  const speak = async (model: string) => {
    const response = await openai.audio.speech.create({ model, voice: 'alloy', input: 'Hello' });
    expect(response.headers.get('content-type')).toBe('audio/mpeg');
    return Buffer.from(await response.arrayBuffer());
  };
  const sound = await speak('tts-1');
  expect(sound).toHaveLength(5_000);
  expect((await speak('tts-1')).equals(sound)).toBe(true);
  expect(await speak('tts-1+200001bytes')).toHaveLength(200_001);
  const events = await post('/v1/audio/speech', {
    model: 'tts-1',
    voice: 'alloy',
    input: 'Hello',
    stream_format: 'sse',
  });
  const [first = '{}'] = dataOf(await events.text());
  expect(Buffer.from((JSON.parse(first) as { audio: string }).audio, 'base64').equals(sound)).toBe(true);
  const cut = await post('/v1/audio/speech', { model: 'sim-fault-cut', voice: 'alloy', input: 'Hello' });
  await expect(cut.arrayBuffer()).rejects.toThrow('terminated');
});

test('transcriptions tell size and digest of the file, in every format', async () => {
  const expected = `Received 70000 bytes with SHA-256 ${sha256(noise)} as voice.mp3.`;
  const audio = { file: file(noise, 'voice.mp3'), model: 'whisper-1' };
  expect(await openai.audio.transcriptions.create(audio)).toMatchObject({ text: expected });
  expect(await openai.audio.transcriptions.create({ ...audio, response_format: 'text' })).toBe(`${expected}\n`);
  expect(await openai.audio.transcriptions.create({ ...audio, response_format: 'vtt' })).toContain(`\n${expected}\n`);
  let text = '';
  for await (const event of await openai.audio.transcriptions.create({ ...audio, stream: true })) {
    if (event.type === 'transcript.text.delta') text += event.delta;
  }
  expect(text).toBe(expected);
  expect(await openai.audio.translations.create(audio)).toMatchObject({ text: expected });
});

test('areas that keep state echo what was sent, credentials left out', async () => {
  const response = await fetch(`${url}/v1/threads/t1/runs?limit=2`, {
    method: 'POST',
    headers: { authorization: 'Bearer canary-key', 'openai-beta': 'assistants=v2' },
    body: '{"assistant_id":"a"}',
  });
  const text = await response.text();
  expect(text).not.toContain('canary-key');
  expect(JSON.parse(text)).toMatchObject({
    object: 'simulator.echo',
    method: 'POST',
    path: '/v1/threads/t1/runs',
    query: 'limit=2',
    headers: { 'openai-beta': 'assistants=v2', authorization: '[present]' },
    body: { bytes: 20, sha256: sha256(Buffer.from('{"assistant_id":"a"}')), json: { assistant_id: 'a' } },
  });
  for (const path of ['/v1/assistants', '/v1/vector_stores/v/files', '/v1/responses/resp_1']) {
    const gone = await fetch(url + path, { method: 'DELETE', headers: { authorization: 'Bearer k' } });
    expect(await gone.json()).toMatchObject({ method: 'DELETE', path, body: { bytes: 0 } });
  }
  expect((await post('/v1/assistants', { model: 'sim-fault-503' })).status).toBe(503);
});
