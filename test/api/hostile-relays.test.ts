import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';

// What an ill-meaning or broken provider, or client, can do to a call that is forwarded whole.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());

test.each(['/audio/speech', '/chat/completions'])(
  'a header that HTTP cannot carry on is left out, and the call of %s is not lost for it',
  async (route) => {
    const body = JSON.stringify({ object: 'chat.completion', choices: [] });
    upstream.script(async (reply) => {
      const names = 'content-disposition: attachment; filename="日本.mp3"\r\nx-ratelimit-note: 日本\r\n';
      await reply.raw(
        `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n${names}\r\n${body}`,
      );
    });
    const response = await postJson(platform, route, {
      model: '@scripted/any',
      input: 'Hi',
      messages: [{ role: 'user', content: 'Hi' }],
    });
    expect(response.status).toBe(200);
    expect(await response.text()).toBe(body);
  },
);

test('a large upload that is refused before any call gets its answer', async () => {
  const stored = await postJson(platform, '/virtual-keys', {
    name: 'groq',
    slug: 'groq',
    provider: 'groq',
    key: 'k'.repeat(30),
  });
  expect(stored.status).toBe(200);
  const { hostname, port } = new URL(platform.baseUrl);
  const upload = httpRequest({
    hostname,
    port,
    path: '/v1/images/edits',
    method: 'POST',
    headers: {
      authorization: `Bearer ${platform.adminKey}`,
      'content-type': 'multipart/form-data; boundary=x',
      'x-gateway-virtual-key': 'groq',
    },
  });
  const failed = once(upload, 'error').then(([error]) => Promise.reject(error as Error));
  const answered = once(upload, 'response') as Promise<[IncomingMessage]>;
  for (let sent = 0; sent < 3_000_000; sent += 100_000) upload.write(Buffer.alloc(100_000));
  upload.end();
  const [answer] = await Promise.race([answered, failed]);
  failed.catch(() => {});
  expect(answer.statusCode).toBe(400);
  const chunks: Buffer[] = await answer.toArray();
  expect(JSON.parse(Buffer.concat(chunks).toString())).toMatchObject({ error: { code: 'unsupported_operation' } });
  await eventually(
    () => upload.writableFinished,
    (isFinished) => isFinished,
    { timeoutMs: 2_000 },
  );
});
