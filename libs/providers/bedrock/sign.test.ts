import { createHash, createHmac } from 'node:crypto';
import { expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { bytesOf, encodeChat, translationCall, upstreamAt } from '#test/translation-call.ts';
import { bedrock } from './index.ts';

const secret = 'aws-SECRET-0123456789';
const now = Date.UTC(2026, 0, 2, 3, 4, 5);
const tools = { now, fetch: () => Promise.reject(new Error('nothing is fetched')), keepSecret: () => {} };
const body = { model: 'm', messages: [{ role: 'user', content: 'Grüße' }] };
const upstream = upstreamAt('https://bedrock-runtime.eu-west-1.amazonaws.com', {
  apiKey: null,
  settings: { aws_region: 'eu-west-1', aws_access_key_id: 'AKIDEXAMPLE' },
  secrets: { aws_secret_access_key: new Secret(secret), aws_session_token: new Secret('token') },
});

async function sign(model: string, baseUrl = upstream.baseUrl) {
  const target = { ...upstream, baseUrl };
  const { outbound } = encodeChat(bedrock, translationCall({ ...body, model }), target);
  await bedrock.authorize?.(outbound, target, tools);
  const headers = new Map<string, string>();
  for (let at = 0; at < outbound.headers.length; at += 2)
    headers.set(String(outbound.headers[at]), String(outbound.headers[at + 1]));
  return { outbound, headers };
}

const sha256 = (data: string | Uint8Array): string => createHash('sha256').update(data).digest('hex');
const hmac = (key: string | Buffer, data: string): Buffer => createHmac('sha256', key).update(data).digest();

/** AWS's published rules, implemented directly: every service except S3 escapes the sent path once more. */
function signatureOf(path: string, host: string, headers: ReadonlyMap<string, string>, sent: Uint8Array): string {
  const names = ['content-type', 'host', 'x-amz-content-sha256', 'x-amz-date', 'x-amz-security-token'];
  const canonical = [
    'POST',
    path
      .split('/')
      .map((segment) => encodeURIComponent(segment))
      .join('/'),
    '',
    ...names.map((name) => `${name}:${name === 'host' ? host : (headers.get(name) ?? '')}`),
    '',
    names.join(';'),
    sha256(sent),
  ].join('\n');
  const scope = '20260102/eu-west-1/bedrock/aws4_request';
  const text = ['AWS4-HMAC-SHA256', '20260102T030405Z', scope, sha256(canonical)].join('\n');
  const key = scope.split('/').reduce<Buffer | string>((made, part) => hmac(made, part), `AWS4${secret}`);
  return hmac(key, text).toString('hex');
}

test.each([
  ['anthropic.claude-sonnet-4-5-20250929-v1:0', '/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse'],
  [
    'arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.amazon.nova-pro-v1:0',
    '/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A123456789012%3Ainference-profile%2Feu.amazon.nova-pro-v1%3A0/converse',
  ],
  ["it's (odd)*/a.b/c", '/model/it%27s%20%28odd%29%2A%2Fa.b%2Fc/converse'],
])('the path of %s is signed as it is sent', async (model, path) => {
  const { outbound, headers } = await sign(model);
  expect(outbound.path).toBe(path);
  const wanted = signatureOf(path, 'bedrock-runtime.eu-west-1.amazonaws.com', headers, bytesOf(outbound));
  expect(headers.get('authorization')).toMatch(new RegExp(`Signature=${wanted}$`));
  expect(headers.get('x-amz-content-sha256')).toBe(sha256(bytesOf(outbound)));
});

test('a custom host is signed with its port and folder', async () => {
  const { outbound, headers } = await sign('m', new URL('http://127.0.0.1:8080/aws/'));
  expect(outbound.path).toBe('/aws/model/m/converse');
  const wanted = signatureOf(outbound.path, '127.0.0.1:8080', headers, bytesOf(outbound));
  expect(headers.get('authorization')).toContain(`Signature=${wanted}`);
});

test('an API key is sent as it is, and nothing is signed', async () => {
  const target = upstreamAt('https://bedrock-runtime.eu-west-1.amazonaws.com');
  const { outbound, headers } = encodeChat(bedrock, translationCall(body), target);
  const before = [...outbound.headers];
  await bedrock.authorize?.(outbound, target, tools);
  expect(outbound.headers).toEqual(before);
  expect(headers['authorization']).toBe('Bearer sk-test-0123456789');
});

test.each(['aws_region', 'aws_access_key_id', 'aws_secret_access_key'])('without %s it says so', async (name) => {
  const without = (all: object) => Object.fromEntries(Object.entries(all).filter(([key]) => key !== name));
  const target = {
    ...upstream,
    settings: without(upstream.settings) as Record<string, string>,
    secrets: without(upstream.secrets) as Record<string, Secret>,
  };
  const { outbound } = encodeChat(bedrock, translationCall(body), target);
  await expect(bedrock.authorize?.(outbound, target, tools)).rejects.toMatchObject({
    kind: 'invalid_request',
    code: 'missing_credentials',
    param: name,
  });
});

test('a region makes an address, and nothing else does', () => {
  expect(bedrock.baseUrlOf({})).toBeNull();
  expect(bedrock.baseUrlOf({ aws_region: 'us-gov-west-1' })?.href).toBe(
    'https://bedrock-runtime.us-gov-west-1.amazonaws.com/',
  );
  expect(bedrock.baseUrlOf({ aws_region: 'cn-north-1' })?.hostname).toBe('bedrock-runtime.cn-north-1.amazonaws.com.cn');
  for (const region of [
    'evil.example/',
    'us-east-1.evil.example',
    'us-east-1@evil',
    'US-EAST-1',
    '-',
    'a'.repeat(90),
  ]) {
    expect(() => bedrock.baseUrlOf({ aws_region: region })).toThrow(
      expect.objectContaining({ kind: 'invalid_request', param: 'aws_region' }),
    );
  }
});

test('a region that is none is not signed for either, so that STS is called at no other host', async () => {
  const settings = { ...upstream.settings, aws_region: 'evil.example/', aws_role_arn: 'arn:aws:iam::1:role/r' };
  const target = { ...upstream, settings };
  const { outbound } = encodeChat(bedrock, translationCall(body), target);
  await expect(bedrock.authorize?.(outbound, target, tools)).rejects.toMatchObject({ param: 'aws_region' });
});

test('a role is taken on with the credentials, and its own sign the request', async () => {
  const target = { ...upstream, settings: { ...upstream.settings, aws_role_arn: 'arn:aws:iam::1:role/signing' } };
  const { outbound } = encodeChat(bedrock, translationCall(body), target);
  const xml =
    '<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>role-token</SessionToken>' +
    '<Expiration>2026-01-02T04:04:05Z</Expiration>';
  const fetch = () => Promise.resolve({ status: 200, body: Buffer.from(xml) });
  await bedrock.authorize?.(outbound, target, { ...tools, fetch });
  expect(outbound.headers.join(' ')).toMatch(/x-amz-security-token role-token .*Credential=ASIAROLE\/20260102/);
});
