import { Readable } from 'node:stream';
import { afterEach, expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { canary, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';

let rig: ForwardingRig | undefined;
afterEach(async () => {
  await rig?.stop();
});

const { signal } = new AbortController();

test('a stream is sent whole with the credential, and the answer is returned whatever its status', async () => {
  rig = await startForwardingRig((reply) => reply.json(201, { id: 'file-1', echoed: canary }));
  const answer = await rig.forwarder.request(rig.target, {
    method: 'POST',
    path: '/files?x=1',
    headers: ['content-type', 'text/plain', 'content-length', '10'],
    body: Readable.from([Buffer.from('hello'), Buffer.from('world')]),
    signal,
  });
  const [sent] = rig.upstream.requests;
  expect(sent).toMatchObject({ method: 'POST', path: '/v1/files?x=1', headers: { authorization: `Bearer ${canary}` } });
  expect(sent?.body.toString()).toBe('helloworld');
  expect(answer).toMatchObject({ status: 201, error: null });
  expect(answer.json()).toEqual({ id: 'file-1', echoed: '[redacted]' });
});

test('an error is read and contains no trace of the credential', async () => {
  const message = `Incorrect key ${canary}`;
  rig = await startForwardingRig((reply) => reply.json(401, { error: { message, code: 'invalid_api_key' } }));
  const answer = await rig.forwarder.request(rig.target, { method: 'GET', path: '/fine_tuning/jobs', signal });
  expect(answer).toMatchObject({ status: 401, error: { error: { code: 'invalid_api_key' } } });
  expect(JSON.stringify(answer.error)).not.toContain(canary);
});

test('an error that is a page is reported as one', async () => {
  rig = await startForwardingRig((reply) => reply.respond(503, `<html>${canary}</html>`));
  const answer = await rig.forwarder.request(rig.target, { method: 'GET', path: '/fine_tuning/jobs', signal });
  expect(answer.error?.error.message).toBe(
    'The provider returned status 503 with a body that is not JSON. It starts with: "<html>[redacted]</html>"',
  );
});

test('nothing is sent to a provider without fine-tuning, nor a stored credential to another origin', async () => {
  rig = await startForwardingRig((reply) => reply.json(200, {}));
  const request = { method: 'GET' as const, path: '/fine_tuning/jobs', signal };
  await expect(rig.forwarder.request({ ...rig.target, provider: 'groq' }, request)).rejects.toMatchObject({
    kind: 'unsupported_operation',
  });
  const elsewhere = { ...rig.target, secretOrigin: 'https://api.openai.com' };
  await expect(rig.forwarder.request(elsewhere, request)).rejects.toMatchObject({ code: 'credential_origin_mismatch' });
  expect(rig.upstream.connections().accepted).toBe(0);
});

test('a placeholder key, for a server that needs none, is not removed from names', async () => {
  rig = await startForwardingRig((reply) => reply.json(200, { fine_tuned_model: 'ft:sim:sluice-simulator' }));
  const target = { ...rig.target, apiKey: new Secret('simulator') };
  const answer = await rig.forwarder.request(target, { method: 'GET', path: '/fine_tuning/jobs/1', signal });
  expect(answer.json()).toEqual({ fine_tuned_model: 'ft:sim:sluice-simulator' });
});

test('a stream that breaks off ends the request as failed, and a part of it is never taken for the whole', async () => {
  rig = await startForwardingRig((reply) => reply.json(200, {}));
  async function* broken() {
    yield Buffer.from('hello');
    throw new Error('the disk is gone');
  }
  const headers = ['content-length', '10'];
  const request = { method: 'POST' as const, path: '/files', headers, body: Readable.from(broken()), signal };
  await expect(rig.forwarder.request(rig.target, request)).rejects.toMatchObject({ kind: 'provider_failed' });
  expect(rig.upstream.requests).toEqual([]);
});
