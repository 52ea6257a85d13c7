import { once } from 'node:events';
import { createServer, type AddressInfo, type Server } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { forbiddenSpellings } from '#test/forbidden-spellings.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { canary, postJson } from './scripted-provider.ts';

// SEC-1 to SEC-3: whatever way a forbidden address comes in, it is refused, and nobody is connected to.

let platform: TestPlatform;
let listener: Server;
let connections = 0;
let port: number;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  // Every address of this machine, of both families.
  listener = createServer((socket) => {
    connections += 1;
    socket.destroy();
  }).listen(0, '::');
  await once(listener, 'listening');
  port = (listener.address() as AddressInfo).port;
});
afterAll(async () => {
  await platform.stop();
  listener.close();
});

const spelled = [...forbiddenSpellings, 'http://localhost:PORT/', 'http://localhost.:PORT/', 'http://LOCALHOST:PORT/'];
const chat = { model: 'any', messages: [{ role: 'user', content: 'Hi' }] };
const livePaths = [
  ['/chat/completions', chat],
  ['/completions', { model: 'any', prompt: 'Hi' }],
  ['/embeddings', { model: 'any', input: 'Hi' }],
] as const;
/** A caller with a provider key of its own. */
const own = () => ({ authorization: `Bearer ${canary}`, 'x-gateway-api-key': platform.adminKey });

async function expectRefused(response: Response): Promise<void> {
  const text = await response.text();
  expect({ status: response.status, text }).toEqual({ status: 400, text: expect.any(String) });
  expect(JSON.parse(text)).toMatchObject({
    error: { code: expect.stringMatching(/^(destination_not_allowed|invalid_value)$/), type: 'invalid_request_error' },
  });
  expect(text).not.toContain(canary);
  expect(connections).toBe(0);
}

const target = (host: string) => ({ provider: 'openai-compatible', api_key: canary, custom_host: host });
const configs: Record<string, (host: string) => object> = {
  'a config': target,
  'a target of a config': (host) => ({ strategy: { mode: 'fallback' }, targets: [target(host)] }),
  'a nested target': (host) => ({
    strategy: { mode: 'loadbalance' },
    targets: [{ strategy: { mode: 'fallback' }, targets: [target(host)] }],
  }),
};

describe.each(spelled)('%j', (spelling) => {
  const host = (): string => spelling.replace('PORT', String(port));

  test('is refused as a custom host of each live route', async () => {
    // A header carries no line break and no letter beyond Latin-1; bytes that a client might send instead are refused too.
    const value = Buffer.from(host().replaceAll(/[\n\t]/g, ' ')).toString('latin1');
    if (/[^\t\u0020-\u007E\u0080-\u00FF]/.test(value)) return;
    for (const [path, body] of livePaths) {
      await expectRefused(
        await postJson(platform, path, body, {
          ...own(),
          'x-gateway-provider': 'openai-compatible',
          'x-gateway-custom-host': value,
        }),
      );
    }
  });

  test.each(Object.keys(configs))('is refused in %s', async (name) => {
    const config = JSON.stringify(configs[name]?.(host())).replaceAll(
      /[^\u0020-\u007E]/g,
      (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
    );
    for (const [path, body] of livePaths) {
      await expectRefused(await postJson(platform, path, body, { 'x-gateway-config': config }));
    }
  });

  test('is not stored as the host of a virtual key', async () => {
    await expectRefused(
      await postJson(platform, '/virtual-keys', {
        name: 'forbidden',
        provider: 'openai-compatible',
        key: canary,
        custom_host: host(),
      }),
    );
  });
});
