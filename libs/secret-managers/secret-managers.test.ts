import { createHash, createHmac } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createEgress } from '#libs/calls/upstream/egress/egress.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { startVault, type TestVault } from '#test/vault.ts';
import { createSecretManagers } from './secret-managers.ts';
import type { LiveSecretReference, Send } from './secret-manager.ts';
import { createSend } from './send.ts';

let vault: TestVault;
let folder: string;
const egress = createEgress({ allow: parseEgressAllow('127.0.0.0/8') });
beforeAll(async () => {
  vault = await startVault();
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-token-'));
});
afterAll(async () => {
  await egress.stop();
  await vault.stop();
  await rm(folder, { recursive: true, force: true });
});
beforeEach(() => {
  vault.requests.length = 0;
  vault.mood('well');
});

const now = Date.UTC(2026, 0, 2, 3, 4, 5);
let monotonicMs = 0;
const timeouts = { connectMs: 100, headersMs: 100, idleMs: 100, totalMs: 200 };

function managers(send: Send = createSend({ egress, signal: new AbortController().signal, timeouts })) {
  return createSecretManagers({
    send,
    checkDestination: egress.check,
    readVariable: () => undefined,
    folder: null,
    kubernetes: { tokenFile: path.join(folder, 'token'), vaults: new Set([vault.url]) },
    now: () => now,
    monotonicMs: () => monotonicMs,
  });
}

const reference = (more: Partial<LiveSecretReference>): LiveSecretReference => ({
  id: 'sref_1',
  slug: 'openai',
  ownerId: 'org_default',
  managerType: 'hashicorp_vault',
  auth: {},
  secrets: {},
  path: 'secret/openai',
  allowedKeys: [],
  key: null,
  workspaces: null,
  ...more,
});
const inVault = (auth: Record<string, string>, secrets: Record<string, string> = {}): LiveSecretReference =>
  reference({
    auth: { vault_addr: vault.url, ...auth },
    secrets: Object.fromEntries(Object.entries(secrets).map(([name, value]) => [name, new Secret(value)])),
  });

test('a token, an AppRole and a service account read the same secret of Vault', async () => {
  vault.put('openai', { key: 'sk-0123456789' });
  vault.allowJwt('jwt-of-this-pod');
  await writeFile(path.join(folder, 'token'), 'jwt-of-this-pod\n');
  const { roleId, secretId } = vault.appRole;
  const references = [
    inVault({ vault_auth_type: 'token', vault_namespace: 'team' }, { vault_token: vault.rootToken }),
    inVault({ vault_auth_type: 'approle', vault_role_id: roleId }, { vault_secret_id: secretId }),
    inVault({ vault_auth_type: 'kubernetes', vault_role: 'gateway' }),
  ];
  const own = managers();
  for (const one of references) {
    expect((await own.fetch(one)).pick('key', 'string').reveal()).toBe('sk-0123456789');
    await own.fetch(one);
  }
  // One login serves several reads.
  expect(vault.requests).toEqual([
    'GET /v1/secret/data/openai team',
    'GET /v1/secret/data/openai team',
    'POST /v1/auth/approle/login',
    'GET /v1/secret/data/openai',
    'GET /v1/secret/data/openai',
    'POST /v1/auth/kubernetes/login',
    'GET /v1/secret/data/openai',
    'GET /v1/secret/data/openai',
  ]);
});

test('a login is repeated before its lease of an hour ends', async () => {
  vault.put('openai', { key: 'sk-0123456789' });
  const { roleId, secretId } = vault.appRole;
  const one = inVault({ vault_auth_type: 'approle', vault_role_id: roleId }, { vault_secret_id: secretId });
  const own = managers();
  const logins = async (ms: number): Promise<number> => {
    monotonicMs += ms;
    await own.fetch(one);
    return vault.requests.filter((request) => request.startsWith('POST')).length;
  };
  expect([await logins(0), await logins(40 * 60_000), await logins(15 * 60_000)]).toEqual([1, 1, 2]);
});

test("a service account's token is not sent to a Vault that the operator has not named", async () => {
  const other = await startVault();
  try {
    const one = reference({ auth: { vault_addr: other.url, vault_auth_type: 'kubernetes', vault_role: 'gateway' } });
    await expect(managers().fetch(one)).rejects.toMatchObject({ param: 'auth_config.vault_addr' });
    expect(other.requests).toEqual([]);
  } finally {
    await other.stop();
  }
});

test('a Vault that hangs costs its time limit', async () => {
  vault.mood('hangs');
  const one = inVault({ vault_auth_type: 'token' }, { vault_token: vault.rootToken });
  await expect(managers().fetch(one)).rejects.toMatchObject({
    fault: 'unavailable',
    message: expect.stringContaining('its secret manager'),
  });
});

test('a deleted version is not found, and a secret of another engine is not understood', async () => {
  vault.put('openai', { key: 'sk-0123456789' });
  vault.remove('openai');
  const one = inVault({ vault_auth_type: 'token' }, { vault_token: vault.rootToken });
  await expect(managers().fetch(one)).rejects.toMatchObject({ fault: 'not_found' });
  const versionOne: Send = () =>
    Promise.resolve({ status: 200, body: Buffer.from('{"data":{"key":"sk-0123456789"}}') });
  await expect(managers(versionOne).fetch(one)).rejects.toMatchObject({
    fault: 'malformed',
    message: expect.stringMatching(/version 2/),
  });
});

test('an answer that is no JSON is not quoted', async () => {
  const odd: Send = () => Promise.resolve({ status: 200, body: Buffer.from('sk-canary') });
  const one = inVault({ vault_auth_type: 'token' }, { vault_token: vault.rootToken });
  await expect(managers(odd).fetch(one)).rejects.toMatchObject({ fault: 'unavailable' });
  await expect(managers(odd).fetch(one)).rejects.not.toThrow('sk-canary');
});

test('a private address needs the permission of the operator', async () => {
  const strict = createEgress({ allow: parseEgressAllow('') });
  try {
    const send = createSend({ egress: strict, signal: new AbortController().signal });
    const one = inVault({ vault_auth_type: 'token' }, { vault_token: vault.rootToken });
    await expect(managers(send).fetch(one)).rejects.toMatchObject({
      fault: 'denied',
      message: expect.stringMatching(/SLUICE_EGRESS_ALLOW/),
    });
    expect(vault.requests).toEqual([]);
  } finally {
    await strict.stop();
  }
});

const sha256 = (data: string | Uint8Array): string => createHash('sha256').update(data).digest('hex');
const hmac = (key: string | Buffer, data: string): Buffer => createHmac('sha256', key).update(data).digest();

const inAws = reference({
  managerType: 'aws_sm',
  path: 'prod/openai',
  auth: { aws_auth_type: 'accessKey', aws_access_key_id: 'AKIDEXAMPLE', aws_region: 'eu-west-1' },
  secrets: { aws_secret_access_key: new Secret('aws-secret-0123456789') },
});

test('AWS Secrets Manager is asked with a signature by the published rules', async () => {
  const sent: Parameters<Send>[1][] = [];
  const send: Send = (_reference, request) => {
    sent.push(request);
    const body = JSON.stringify({ Name: 'prod/openai', SecretString: '{"key":"sk-0123456789"}', VersionId: 'v' });
    return Promise.resolve({ status: 200, body: Buffer.from(body) });
  };
  const secret = await managers(send).fetch(inAws);
  expect(secret.pick('key', 'string').reveal()).toBe('sk-0123456789');
  const [request] = sent;
  expect(request?.url.href).toBe('https://secretsmanager.eu-west-1.amazonaws.com/');
  expect(request?.body?.toString()).toBe('{"SecretId":"prod/openai"}');
  const flat = request?.headers ?? [];
  const header = (name: string): string => flat[flat.indexOf(name) + 1] ?? '';
  expect(header('x-amz-target')).toBe('secretsmanager.GetSecretValue');
  const names = ['content-type', 'host', 'x-amz-content-sha256', 'x-amz-date'];
  const canonical = [
    'POST',
    '/',
    '',
    ...names.map((name) => `${name}:${name === 'host' ? 'secretsmanager.eu-west-1.amazonaws.com' : header(name)}`),
    '',
    names.join(';'),
    sha256(request?.body ?? ''),
  ].join('\n');
  const scope = '20260102/eu-west-1/secretsmanager/aws4_request';
  const text = ['AWS4-HMAC-SHA256', '20260102T030405Z', scope, sha256(canonical)].join('\n');
  const key = scope.split('/').reduce<Buffer | string>((made, part) => hmac(made, part), 'AWS4aws-secret-0123456789');
  expect(header('authorization')).toMatch(new RegExp(`Signature=${hmac(key, text).toString('hex')}$`));
});

test.each([
  [400, { __type: 'com.amazonaws.secretsmanager#ResourceNotFoundException' }, 'not_found'],
  [400, { __type: 'AccessDeniedException', Message: 'canary' }, 'denied'],
  [400, { __type: 'UnrecognizedClientException' }, 'denied'],
  [400, { __type: 'ThrottlingException' }, 'unavailable'],
  [500, { __type: 'InternalServiceError' }, 'unavailable'],
  [200, { SecretBinary: 'c2s=' }, 'malformed'],
])('an answer of AWS with %i %j counts as %s', async (status, body, fault) => {
  const send: Send = () => Promise.resolve({ status, body: Buffer.from(JSON.stringify(body)) });
  const fetching = managers(send).fetch(inAws);
  await expect(fetching).rejects.toMatchObject({ fault });
  await expect(fetching).rejects.not.toThrow('canary');
});

test('Azure Key Vault is asked with a token for its scope', async () => {
  const inAzure = reference({
    managerType: 'azure_kv',
    path: 'openai-key',
    auth: {
      azure_auth_mode: 'entra',
      azure_entra_tenant_id: 'tenant',
      azure_entra_client_id: 'client',
      azure_vault_url: 'https://example.vault.azure.net',
    },
    secrets: { azure_entra_client_secret: new Secret('azure-secret-0123456789') },
  });
  const sent: Parameters<Send>[1][] = [];
  const statuses = [200, 403, 404, 429];
  const send: Send = (_reference, request) => {
    sent.push(request);
    if (request.url.host === 'login.microsoftonline.com') {
      return Promise.resolve({ status: 200, body: Buffer.from('{"access_token":"token","expires_in":3600}') });
    }
    return Promise.resolve({ status: statuses.shift() ?? 500, body: Buffer.from('{"value":"sk-0123456789"}') });
  };
  const own = managers(send);
  expect((await own.fetch(inAzure)).pick(null, 'string').reveal()).toBe('sk-0123456789');
  const form = new URLSearchParams(sent[0]?.body?.toString());
  expect(form.get('scope')).toBe('https://vault.azure.net/.default');
  expect(sent[1]).toMatchObject({
    method: 'GET',
    url: { href: 'https://example.vault.azure.net/secrets/openai-key?api-version=7.4' },
    headers: ['authorization', 'Bearer token'],
  });
  for (const fault of ['denied', 'not_found', 'unavailable'])
    await expect(own.fetch(inAzure)).rejects.toMatchObject({ fault });
});

test.each([
  ['aws_sm', 'prod/openai', { aws_region: 'evil.example/' }],
  ['aws_sm', 'prod openai', { aws_region: 'eu-west-1' }],
  ['azure_kv', 'openai-key', { azure_vault_url: 'https://example.vault.azure.net.evil.example' }],
  ['azure_kv', 'openai-key', { azure_vault_url: 'http://example.vault.azure.net' }],
  ['azure_kv', 'openai-key', { azure_vault_url: 'https://example.vault.azure.net:8443' }],
  ['azure_kv', '../keys/openai', { azure_vault_url: 'https://example.vault.azure.net' }],
  ['hashicorp_vault', 'secret/a?version=1', { vault_addr: 'https://vault.example' }],
  ['hashicorp_vault', 'secret/%2e%2e/sys', { vault_addr: 'https://vault.example' }],
  ['hashicorp_vault', 'secret', { vault_addr: 'https://vault.example' }],
  ['file', 'openai/key', {}],
] as const)('a reference of the type %s to %s with %j is refused', (managerType, name, auth) => {
  expect(() => managers().check({ managerType, path: name, auth })).toThrow(
    expect.objectContaining({ kind: 'invalid_request' }),
  );
});
