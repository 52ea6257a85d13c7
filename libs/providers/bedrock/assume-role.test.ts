import { expect, test } from 'vitest';
import type { AuthorizeTools, OutboundRequest } from '#libs/providers/provider.ts';
import { bytesOf } from '#test/translation-call.ts';
import { assumeRole, type Role } from './assume-role.ts';

const start = Date.UTC(2026, 0, 2);
let roles = 0;
/** A role that no other test has assumed. */
const newRole = (): Role => ({
  roleArn: `arn:aws:iam::123456789012:role/r${(roles += 1)}`,
  externalId: 'ext&1',
  region: 'eu-west-1',
  credentials: { accessKeyId: 'AKIDEXAMPLE', secretAccessKey: 'own-secret', sessionToken: undefined },
});
const answer = (number: number, expiresAt: number): string =>
  `<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIA${number}</AccessKeyId>` +
  `<SecretAccessKey>secret${number}</SecretAccessKey><SessionToken>token${number}</SessionToken>` +
  `<Expiration>${new Date(expiresAt).toISOString()}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`;

/** STS, with its requests and its future answers, and a clock that tests move. */
function sts() {
  const requests: OutboundRequest[] = [];
  const kept: string[] = [];
  const state = { now: start, reply: (): { status: number; text: string } => ({ status: 500, text: '' }) };
  const at = (): AuthorizeTools => ({
    now: state.now,
    fetch: (request) => {
      requests.push(request);
      const { status, text } = state.reply();
      return Promise.resolve({ status, body: Buffer.from(text) });
    },
    keepSecret: (text) => void kept.push(text),
  });
  state.reply = () => ({ status: 200, text: answer(requests.length, state.now + 3_600_000) });
  return { requests, kept, state, at };
}

test('a role is taken on once, and renewed before it ends by one call', async () => {
  const { requests, kept, state, at } = sts();
  const role = newRole();
  expect(await assumeRole(role, at())).toEqual({
    accessKeyId: 'ASIA1',
    secretAccessKey: 'secret1',
    sessionToken: 'token1',
  });
  expect(await assumeRole(role, at())).toMatchObject({ accessKeyId: 'ASIA1' });
  expect(kept).toEqual(['secret1', 'token1', 'secret1', 'token1']);
  state.now = start + 3_400_000;
  const [renewing, other] = await Promise.all([assumeRole(role, at()), assumeRole(role, at())]);
  expect([renewing.accessKeyId, other.accessKeyId]).toEqual(['ASIA2', 'ASIA1']);
  expect(requests).toHaveLength(2);
});

test('the request is signed for STS and names the role', async () => {
  const { requests, at } = sts();
  const role = newRole();
  await assumeRole(role, at());
  const [request] = requests;
  expect(request).toMatchObject({ method: 'POST', origin: 'https://sts.eu-west-1.amazonaws.com', path: '/' });
  expect(request?.headers.join(' ')).toMatch(/Credential=AKIDEXAMPLE\/20260102\/eu-west-1\/sts\/aws4_request/);
  expect(Object.fromEntries(new URLSearchParams(request ? bytesOf(request).toString() : ''))).toMatchObject({
    Action: 'AssumeRole',
    RoleArn: role.roleArn,
    ExternalId: 'ext&1',
  });
});

test('another secret beside the same role gets none of its credentials', async () => {
  const { requests, at } = sts();
  const role = newRole();
  await assumeRole(role, at());
  await assumeRole({ ...role, credentials: { ...role.credentials, secretAccessKey: 'guess' } }, at());
  expect(requests).toHaveLength(2);
});

test('a renewal that fails is retried while the old credentials are valid, and is an error when they are not', async () => {
  const { requests, state, at } = sts();
  const role = newRole();
  await assumeRole(role, at());
  state.reply = () => ({ status: 503, text: '' });
  state.now = start + 3_400_000;
  expect(await assumeRole(role, at())).toMatchObject({ accessKeyId: 'ASIA1' });
  expect(await assumeRole(role, at())).toMatchObject({ accessKeyId: 'ASIA1' });
  expect(requests).toHaveLength(3);
  state.now = start + 3_590_000;
  await expect(assumeRole(role, at())).rejects.toMatchObject({ kind: 'provider_failed', code: 'role_not_assumed' });
});

test.each([
  [
    403,
    '<Error><Code>AccessDenied</Code><Message>Not authorized</Message></Error>',
    'invalid_request',
    /Not authorized/,
  ],
  [500, 'oops', 'provider_failed', /returned status 500/],
  [200, '<AssumeRoleResponse/>', 'provider_failed', /returned no credentials/],
])('STS that answers %i %s', async (status, text, kind, message) => {
  const { state, at } = sts();
  state.reply = () => ({ status, text });
  await expect(assumeRole(newRole(), at())).rejects.toMatchObject({ kind, message: expect.stringMatching(message) });
});
