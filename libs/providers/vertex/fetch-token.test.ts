import { createPublicKey, generateKeyPairSync } from 'node:crypto';
import { decodeProtectedHeader, jwtVerify } from 'jose';
import { describe, expect, test } from 'vitest';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { upstreamAt } from '#test/translation-call.ts';
import type { AuthorizeTools, OutboundRequest, Upstream } from '../provider.ts';
import { createVertex } from './index.ts';

const makeKey = () =>
  generateKeyPairSync('rsa', { modulusLength: 2_048 }).privateKey.export({ type: 'pkcs8', format: 'pem' });
const privateKey = makeKey();
const file = {
  type: 'service_account',
  project_id: 'project-1',
  private_key_id: 'key-1',
  private_key: privateKey,
  client_email: 'a@project-1.iam.gserviceaccount.com',
  token_uri: 'https://oauth2.googleapis.com/token',
};
const start = 1_770_000_000_000;

const upstreamOf = (account: object | string, more: Partial<Upstream> = {}): Upstream =>
  upstreamAt('https://us-central1-aiplatform.googleapis.com/v1', {
    apiKey: null,
    settings: { vertex_region: 'us-central1' },
    secrets: {
      vertex_service_account_json: new Secret(typeof account === 'string' ? account : JSON.stringify(account)),
    },
    ...more,
  });
const upstream = upstreamOf(file);

type Answer = { status: number; body: unknown };
const token = (name: string, seconds: unknown = 3_600): Answer => ({
  status: 200,
  body: { access_token: name, expires_in: seconds, token_type: 'Bearer' },
});

/** A provider whose token server answers according to this script, repeating the last answer. */
function rig(...answers: (Answer | Error | Promise<Answer>)[]) {
  const { authorize } = createVertex();
  const requests: OutboundRequest[] = [];
  const kept: string[] = [];
  const fetch: AuthorizeTools['fetch'] = async (request) => {
    requests.push(request);
    const next = await (answers.length > 1 ? answers.shift() : answers[0]);
    if (next === undefined || next instanceof Error) throw next ?? new Error('no answer');
    return {
      status: next.status,
      body: Buffer.from(typeof next.body === 'string' ? next.body : JSON.stringify(next.body)),
    };
  };
  const call = async (target: Upstream = upstream, now = start): Promise<string | undefined> => {
    const request: OutboundRequest = {
      method: 'POST',
      origin: target.baseUrl.origin,
      path: '/',
      headers: [],
      body: null,
    };
    await authorize?.(request, target, { now, fetch, keepSecret: (text) => void kept.push(text) });
    return request.headers[request.headers.indexOf('authorization') + 1];
  };
  return { call, requests, kept };
}
const refused = (message: RegExp) =>
  expect.objectContaining({
    kind: 'invalid_request',
    code: 'invalid_credential',
    message: expect.stringMatching(message),
  });

test('a token is asked for by a signed assertion, and no text may repeat either', async () => {
  const { call, requests, kept } = rig(token('ya29.one'));
  expect(await call()).toBe('Bearer ya29.one');
  const [request] = requests;
  expect(request).toMatchObject({ method: 'POST', origin: 'https://oauth2.googleapis.com', path: '/token' });
  const body = request?.body;
  if (!Buffer.isBuffer(body)) throw new Error('a body of bytes was expected');
  const form = new URLSearchParams(body.toString());
  expect(form.get('grant_type')).toBe('urn:ietf:params:oauth:grant-type:jwt-bearer');
  const assertion = form.get('assertion') ?? '';
  expect(decodeProtectedHeader(assertion)).toEqual({ alg: 'RS256', typ: 'JWT', kid: 'key-1' });
  const { payload } = await jwtVerify(assertion, createPublicKey(privateKey), { currentDate: new Date(start) });
  expect(payload).toEqual({
    iss: file.client_email,
    aud: file.token_uri,
    scope: 'https://www.googleapis.com/auth/cloud-platform',
    iat: start / 1_000,
    exp: start / 1_000 + 3_600,
  });
  expect(kept).toEqual([assertion, 'ya29.one']);
});

test('an access token as the key is sent as it is; without any credential there is no call', async () => {
  const { call, requests } = rig(token('unused'));
  expect(await call(upstreamAt('https://x.test', { apiKey: new Secret('ya29.own') }))).toBe('Bearer ya29.own');
  await expect(call(upstreamAt('https://x.test', { apiKey: null }))).rejects.toThrow(
    expect.objectContaining({ kind: 'invalid_request', code: 'missing_credential' }),
  );
  expect(requests).toEqual([]);
});

describe('a token is kept', () => {
  test('until five minutes before its end', async () => {
    const { call, requests } = rig(token('one'), token('two'));
    expect(await call()).toBe('Bearer one');
    expect(await call(upstream, start + 3_299_999)).toBe('Bearer one');
    expect(await call(upstream, start + 3_300_000)).toBe('Bearer two');
    expect(requests).toHaveLength(2);
  });

  test('for half its life when that is short', async () => {
    const { call } = rig(token('one', 60), token('two'));
    expect(await call()).toBe('Bearer one');
    expect(await call(upstream, start + 29_999)).toBe('Bearer one');
    expect(await call(upstream, start + 30_000)).toBe('Bearer two');
  });

  test('for the same file however often it is read, and for no other one', async () => {
    const { call, requests } = rig(token('one'), token('two'), token('three'));
    expect(await call()).toBe('Bearer one');
    expect(await call(upstreamOf({ ...file }))).toBe('Bearer one');
    // A caller that only knows an account's name and key ID does not get its token.
    expect(await call(upstreamOf({ ...file, private_key: makeKey() }))).toBe('Bearer two');
    expect(await call(upstreamOf({ ...file, private_key_id: 'key-2' }))).toBe('Bearer three');
    expect(requests).toHaveLength(3);
  });
});

describe('calls at the same time', () => {
  test('wait for one fetch', async () => {
    const { call, requests } = rig(token('one'));
    expect(await Promise.all([call(), call(), call()])).toEqual(['Bearer one', 'Bearer one', 'Bearer one']);
    expect(requests).toHaveLength(1);
  });

  test('share its failure, and the next call tries again', async () => {
    const { call, requests } = rig({ status: 503, body: '' }, token('one'));
    const results = await Promise.allSettled([call(), call()]);
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    expect(await call()).toBe('Bearer one');
    expect(requests).toHaveLength(2);
  });

  test('outlive the one that began it', async () => {
    const left = new GatewayError('unavailable', 'call_aborted', 'The call was cancelled.');
    const { call, requests } = rig(left, token('one'));
    const [first, ...others] = await Promise.allSettled([call(), call(), call()]);
    expect(first).toMatchObject({ status: 'rejected', reason: left });
    expect(others).toEqual(others.map(() => ({ status: 'fulfilled', value: 'Bearer one' })));
    expect(requests).toHaveLength(2);
  });
});

describe('the key file', () => {
  test.each([
    ['no JSON', /not valid JSON/],
    [[], /client_email or private_key is missing/],
    [{ ...file, private_key: 'x' }, /PEM format/],
    [{ ...file, token_uri: 'https://evil.test/token' }, /token_uri/],
    [{ ...file, token_uri: 'https://oauth2.googleapis.com/token?x=1' }, /token_uri/],
    [{ ...file, token_uri: 'https://oauth2.googleapis.com.evil.test/token' }, /token_uri/],
    [{ ...file, token_uri: 'http://oauth2.googleapis.com/token' }, /token_uri/],
    [{ ...file, token_uri: 'https://u:p@us-central1-aiplatform.googleapis.com/token' }, /token_uri/],
  ])('is refused before any connection, without a word of it: case %#', async (account, message) => {
    const { call, requests } = rig(token('one'));
    const error = await call(upstreamOf(account)).catch((thrown: unknown) => thrown);
    expect(error).toEqual(refused(message));
    expect(String(error)).not.toContain('PRIVATE KEY');
    expect(requests).toEqual([]);
  });

  test('may name a token server at the target’s own address', async () => {
    const { call, requests } = rig(token('one'));
    const target = upstreamOf(
      { ...file, token_uri: 'http://127.0.0.1:9/token' },
      { baseUrl: new URL('http://127.0.0.1:9/v1') },
    );
    expect(await call(target)).toBe('Bearer one');
    expect(requests).toMatchObject([{ origin: 'http://127.0.0.1:9', path: '/token' }]);
  });

  test('of an EC key is refused', async () => {
    const { privateKey: key } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const pem = key.export({ type: 'pkcs8', format: 'pem' });
    await expect(rig(token('one')).call(upstreamOf({ ...file, private_key: pem }))).rejects.toThrow(refused(/RSA/));
  });
});

test('an account that Google refuses is the caller’s fault; a server that fails is not', async () => {
  const answer = { error: 'invalid_grant', error_description: 'Invalid JWT Signature for Bearer abcdefghijkl.' };
  await expect(rig({ status: 400, body: answer }).call()).rejects.toThrow(
    refused(/returned status 400 \(invalid_grant: Invalid JWT Signature for \[redacted\]/),
  );
  const failed = { kind: 'provider_failed', code: 'upstream_invalid_response' };
  for (const answer of [
    { status: 503, body: '<html>' },
    { status: 429, body: {} },
    { status: 200, body: {} },
    { status: 200, body: { access_token: 'a\r\nb' } },
  ]) {
    await expect(rig(answer).call()).rejects.toThrow(expect.objectContaining(failed));
  }
});
