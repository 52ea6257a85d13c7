import { Readable } from 'node:stream';
import { afterEach, expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { chatRequest, completion, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import type { UpstreamScript } from '#test/upstream.ts';
import type { RenewedCredential, Target } from './call.ts';

let rig: ForwardingRig;
afterEach(async () => rig.stop());

const newest = 'sk-newest-0123456789';
const taking =
  (key: string): UpstreamScript =>
  (reply, { headers }) => {
    if (headers['authorization'] === `Bearer ${key}`) reply.json(200, completion);
    else reply.json(401, { error: { message: `Incorrect key ${headers['authorization']}` } });
  };

/** The rig's target, whose credential is replaced by the result of `renew`. */
function renewing(renew: () => RenewedCredential | null): { target: Target; renewals: () => number } {
  let renewals = 0;
  const renewCredential = () => {
    renewals += 1;
    return Promise.resolve(renew());
  };
  return { target: { ...rig.target, renewCredential }, renewals: () => renewals };
}
const rotated = (): RenewedCredential => ({ apiKey: new Secret(newest), settings: {}, secrets: {} });

test('a call that is refused with an old credential is repeated with the new one, and both attempts are recorded', async () => {
  rig = await startForwardingRig(taking(newest));
  const { target, renewals } = renewing(rotated);
  const outcome = await rig.forwarder.forward(chatRequest(), { ...target, model: 'other' });
  expect(outcome).toMatchObject({ kind: 'json', status: 200 });
  expect(outcome.attempts.map(({ status }) => status)).toEqual([401, 200]);
  expect(rig.upstream.requests[1]?.body.toString()).toContain('"model":"other"');
  expect(renewals()).toBe(1);
});

test('a credential that is refused again is not renewed again, and is in no answer', async () => {
  rig = await startForwardingRig(taking('sk-of-nobody'));
  const { target, renewals } = renewing(rotated);
  const outcome = await rig.forwarder.forward(chatRequest(), target);
  expect(outcome).toMatchObject({ kind: 'json', status: 401 });
  expect(JSON.stringify(outcome)).not.toContain(newest);
  expect([renewals(), rig.upstream.requests.length]).toEqual([1, 2]);
});

test('without a newer credential the refusal is the answer', async () => {
  rig = await startForwardingRig(taking(newest));
  const { target } = renewing(() => null);
  expect(await rig.forwarder.forward(chatRequest(), target)).toMatchObject({ kind: 'json', status: 401 });
  expect(rig.upstream.requests).toHaveLength(1);
});

test('a request for files or fine-tuning is repeated too, and one whose body was a stream is for its sender to repeat', async () => {
  rig = await startForwardingRig(taking(newest));
  const { target } = renewing(rotated);
  const { signal } = new AbortController();
  const polled = await rig.forwarder.request(target, { method: 'GET', path: '/fine_tuning/jobs', signal });
  expect(polled.status).toBe(200);
  const headers = ['content-type', 'text/plain', 'content-length', '5'];
  const body = Readable.from([Buffer.from('hello')]);
  const uploading = rig.forwarder.request(target, { method: 'POST', path: '/files', headers, body, signal });
  await expect(uploading).rejects.toMatchObject({ kind: 'unavailable', code: 'credential_rotated' });
  expect(rig.upstream.requests).toHaveLength(3);
});
