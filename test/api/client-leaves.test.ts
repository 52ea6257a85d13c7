import { request as httpRequest } from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import { createRandom } from '#test/faults/random.ts';
import type { UpstreamReply, UpstreamScript } from '#test/upstream.ts';
import { startScriptedPlatform } from './scripted-provider.ts';

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
});
afterAll(() => scripted.stop());

const clients = 1_000;
const atOnce = 50;
const chunk = `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm', choices: [{ index: 0, delta: { content: 'x'.repeat(200) } }] })}\n\n`;

/** Providers that would never end by themselves: silent, silent after the headers, and talking for ever. */
const endless: readonly UpstreamScript[] = [
  () => {},
  (reply) => reply.head(200, { 'content-type': 'text/event-stream' }),
  async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    while (!reply.isClosed()) {
      await reply.write(chunk);
      await sleep(5);
    }
  },
];

test('a thousand clients leave at a thousand moments: each call is cancelled within a second, and nothing is left', async () => {
  const { platform, upstream } = scripted;
  const random = createRandom(20_260_101);
  let turn = 0;
  let started = 0;
  const arrived = new Map<string, (reply: UpstreamReply) => void>();
  upstream.script((reply, request) => {
    arrived.get(/call-\d+/.exec(request.body.toString())?.[0] ?? '')?.(reply);
    return endless[turn++ % endless.length]?.(reply, request);
  });

  /** Sends a call, or only the half of it, and hangs up: some milliseconds later, or after the provider has it. */
  const leave = async (name: string): Promise<void> => {
    const { promise: there, resolve } = Promise.withResolvers<UpstreamReply>();
    let reply: UpstreamReply | undefined;
    void there.then((seen) => {
      reply = seen;
    });
    arrived.set(name, resolve);
    const messages = [{ role: 'user', content: name }];
    const body = JSON.stringify({ model: '@scripted/any', messages, stream: random.chance(70) });
    const isHalf = random.chance(10);
    const call = httpRequest(`${platform.baseUrl}/chat/completions`, {
      method: 'POST',
      agent: false,
      headers: {
        authorization: `Bearer ${platform.adminKey}`,
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
      },
    });
    call.on('error', () => {}); // hanging up is what this is about
    call.on('response', (response) => response.on('error', () => {}).resume());
    call.write(isHalf ? body.slice(0, body.length / 2) : body);
    if (!isHalf && random.chance(80)) await there;
    await sleep(random.between(0, 20));
    call.destroy();
    arrived.delete(name);
    // Whatever got through by then; what comes later is looked at in the end.
    if (reply)
      await eventually(
        () => reply?.isClosed(),
        (isClosed) => isClosed === true,
        { timeoutMs: 1_000 },
      );
  };
  const queue = Array.from({ length: atOnce }, async () => {
    for (let call = 0; call < clients / atOnce; call += 1) await leave(`call-${(started += 1)}`);
  });
  await Promise.all(queue);

  await eventually(
    () => upstream.connections().open,
    (open) => open === 0,
    { timeoutMs: 1_000 },
  );
  expect(upstream.requests.length).toBeGreaterThan(clients / 2);
  const gauges = ['forwarding_open_calls', 'forwarding_open_streams', 'egress_sockets'];
  await eventually(
    async () => await (await fetch(platform.baseUrl.replace('/v1', '/metrics'))).text(),
    (metrics) => gauges.every((name) => metrics.includes(`\nsluice_${name} 0\n`)),
    { timeoutMs: 1_000 },
  );

  // And it serves on.
  upstream.script((reply) => reply.json(200, { choices: [] }));
  const response = await fetch(`${platform.baseUrl}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    body: '{"model":"@scripted/any","messages":[{"role":"user","content":"Hi"}]}',
  });
  expect(response.status).toBe(200);
});
