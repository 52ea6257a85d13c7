import OpenAI from 'openai';
import { expect, onTestFinished, test } from 'vitest';
import { createEgress } from '#libs/calls/upstream/egress/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { startUpstream, type UpstreamScript } from '#test/upstream.ts';
import { createSigningSecret, postSigned } from './post-signed.ts';

const secrets = [createSigningSecret(), createSigningSecret()];
const body = JSON.stringify({ id: 'evt_1', object: 'event', type: 'batch.completed', data: { id: 'batch_1' } });
const client = new OpenAI({ apiKey: 'none' });

async function post(script: UpstreamScript, allow = true) {
  const receiver = await startUpstream(script);
  onTestFinished(() => receiver.stop());
  const egress = createEgress({ allow: parseEgressAllow(allow ? receiver.url.host : '') });
  onTestFinished(() => egress.stop());
  const url = new URL('/hooks?from=sluice', receiver.url);
  const { signal } = new AbortController();
  const answer = postSigned(
    { egress, nowMs: Date.now(), label: 'The webhook endpoint', signal },
    { id: 'evt_1', body, url, secrets, workspaceId: 'ws_1' },
  );
  return { receiver, answer };
}

test('the client of OpenAI accepts a message with any of its secrets, and no message that was changed', async () => {
  const { receiver, answer } = await post((reply) => reply.json(200, {}));
  expect(await answer).toMatchObject({ status: 200 });
  const { path, headers, body: received } = receiver.requests[0]!;
  expect(path).toBe('/hooks?from=sluice');
  for (const secret of secrets)
    expect(await client.webhooks.unwrap(received.toString(), headers, secret.reveal())).toEqual(JSON.parse(body));
  const others = createSigningSecret().reveal();
  await expect(client.webhooks.unwrap(received.toString(), headers, others)).rejects.toThrow(/signature/);
  await expect(client.webhooks.unwrap(`${body} `, headers, secrets[0]?.reveal())).rejects.toThrow(/signature/);
});

test('an answer counts from its head, however long its body is', async () => {
  const { answer } = await post(async (reply) => {
    reply.head(202);
    await reply.write('never ends');
  });
  expect(await answer).toMatchObject({ status: 202 });
});

test('a redirect is an error', async () => {
  const { answer } = await post((reply) => reply.respond(307, '', { location: 'http://127.0.0.1/' }));
  await expect(answer).rejects.toMatchObject({ code: 'upstream_redirect' });
});

test('a private address is refused, and the error contains no secret', async () => {
  const { receiver, answer } = await post((reply) => reply.json(200, {}), false);
  const error = await answer.catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: 'destination_not_allowed' });
  expect(String((error as Error).stack)).not.toContain(secrets[0]?.reveal());
  expect(receiver.connections().accepted).toBe(0);
});
