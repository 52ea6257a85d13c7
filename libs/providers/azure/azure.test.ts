import { expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { AuthorizeTools, Call, OutboundRequest, Upstream } from '../provider.ts';
import { chatDialect } from '../chat/index.ts';
import { createEntraTokens, readEntraClient } from './entra-token.ts';
import { azure } from './index.ts';

const callOf = (model: string, options: Partial<Call> = {}): Call => ({
  operation: 'chat',
  dialect: chatDialect,
  model,
  body: Buffer.from(JSON.stringify({ model, messages: [] })),
  edits: {},
  json: () => ({}),
  stream: false,
  includeUsage: false,
  strict: true,
  resources: new Map(),
  headers: {},
  ...options,
});
const upstreamOf = (settings: Record<string, string> = {}, secrets: Record<string, string> = {}): Upstream => ({
  baseUrl: new URL('https://r.openai.azure.com/openai'),
  apiKey: new Secret('the-key'),
  settings,
  secrets: Object.fromEntries(Object.entries(secrets).map(([name, value]) => [name, new Secret(value)])),
});
const pathOf = (call: Call, settings: Record<string, string> = {}) =>
  azure.operations.chat?.encode(call, upstreamOf(settings)).path;

test('the address is made of the resource’s name, and of nothing that could be another host', () => {
  expect(azure.baseUrlOf({ azure_resource_name: 'My-Resource' })?.href).toBe(
    'https://my-resource.openai.azure.com/openai',
  );
  expect(azure.baseUrlOf({})).toBeNull();
  expect(azure.baseUrlOf({ azure_resource_name: '' })).toBeNull();
  for (const name of ['evil.example/', 'a.b', 'x@evil.example', 'a#', '-a', '[::1]', 'a\n']) {
    expect(() => azure.baseUrlOf({ azure_resource_name: name })).toThrow(
      expect.objectContaining({ kind: 'invalid_request', param: 'azure_resource_name' }),
    );
  }
});

test('the deployment is the setting, else the model that is called, and never more than one segment', () => {
  expect(pathOf(callOf('gpt-4o'))).toBe('/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21');
  expect(pathOf(callOf('a', { edits: { model: '"b.2_c"' } }))).toContain('/deployments/b.2_c/');
  expect(pathOf(callOf('a'), { azure_deployment_id: 'd', azure_api_version: '2025-04-01-preview' })).toBe(
    '/openai/deployments/d/chat/completions?api-version=2025-04-01-preview',
  );
  for (const model of ['../../x', '..', 'a/b', 'a?b', 'a%2f', 'a b', '']) {
    expect(() => pathOf(callOf(model))).toThrow(expect.objectContaining({ param: 'model' }));
  }
  expect(() => pathOf(callOf('a'), { azure_api_version: '2024&x=y' })).toThrow(
    expect.objectContaining({ param: 'azure_api_version' }),
  );
});

test('version v1 has no deployments in its paths, and previews of it a query', () => {
  expect(pathOf(callOf('a'), { azure_api_version: 'v1' })).toBe('/openai/v1/chat/completions');
  expect(pathOf(callOf('a'), { azure_api_version: 'preview' })).toBe('/openai/v1/chat/completions?api-version=preview');
});

const entra = { azure_entra_tenant_id: 'contoso.example', azure_entra_client_id: 'client' };
const secret = { azure_entra_client_secret: 'the-client-secret' };

function loginServer(answer: (count: number) => { status: number; body: object }) {
  const requests: OutboundRequest[] = [];
  const kept: string[] = [];
  const tools = (now: number): AuthorizeTools => ({
    now,
    keepSecret: (text) => void kept.push(text),
    fetch: (request) => {
      requests.push(request);
      const { status, body } = answer(requests.length);
      return Promise.resolve({ status, body: Buffer.from(JSON.stringify(body)) });
    },
  });
  return { requests, kept, tools };
}

test('an Entra client signs in once, and again shortly before its token ends', async () => {
  const { requests, kept, tools } = loginServer((count) => ({
    status: 200,
    body: { access_token: `t${count}`, expires_in: 3_600 },
  }));
  const tokens = createEntraTokens();
  const client = readEntraClient(upstreamOf(entra, secret));
  if (!client) throw new Error('no client');
  expect(await Promise.all([tokens(client, tools(0)), tokens(client, tools(0))])).toEqual(['t1', 't1']);
  expect(await tokens(client, tools(3_000_000))).toBe('t1');
  expect(await tokens(client, tools(3_300_001))).toBe('t2');
  expect(await tokens({ ...client, clientSecret: 'rotated' }, tools(0))).toBe('t3');
  expect(kept).toEqual(['t1', 't1', 't1', 't2', 't3']);
  expect(requests[0]).toMatchObject({
    method: 'POST',
    origin: 'https://login.microsoftonline.com',
    path: '/contoso.example/oauth2/v2.0/token',
  });
  expect(Object.fromEntries(new URLSearchParams(Buffer.from(requests[0]?.body as Uint8Array).toString()))).toEqual({
    grant_type: 'client_credentials',
    client_id: 'client',
    client_secret: 'the-client-secret',
    scope: 'https://cognitiveservices.azure.com/.default',
  });
});

test('the fetched token is the only credential of the call', async () => {
  const { tools } = loginServer(() => ({ status: 200, body: { access_token: 'fetched', expires_in: 3_600 } }));
  const upstream = upstreamOf({ ...entra, azure_entra_client_id: 'another' }, secret);
  const request = azure.operations.chat?.encode(callOf('a'), upstream);
  if (!request) throw new Error('no request');
  await azure.authorize?.(request, upstream, tools(0));
  expect(request.headers).toEqual(expect.arrayContaining(['authorization', 'Bearer fetched']));
  expect(request.headers).not.toContain('api-key');
});

test('a rejected client is the caller’s mistake, and its secret is not repeated; a broken server may be retried', async () => {
  const refused = {
    error: 'invalid_client',
    error_description: 'AADSTS7000215: Invalid client secret the-client-secret',
  };
  const client = readEntraClient(upstreamOf(entra, secret));
  if (!client) throw new Error('no client');
  const tokens = createEntraTokens();
  const first = await tokens(client, loginServer(() => ({ status: 401, body: refused })).tools(0)).catch(
    (error: unknown) => error,
  );
  expect(first).toMatchObject({ kind: 'invalid_request', code: 'invalid_credential' });
  expect(String(first)).toMatch(/AADSTS7000215/);
  expect(String(first)).not.toContain('the-client-secret');
  await expect(tokens(client, loginServer(() => ({ status: 503, body: {} })).tools(0))).rejects.toMatchObject({
    kind: 'provider_failed',
    code: 'upstream_error',
  });
});

test('half a client, and identities that only a machine in Azure has, are refused', () => {
  expect(() => readEntraClient(upstreamOf(entra))).toThrow(expect.objectContaining({ code: 'invalid_credential' }));
  expect(() => readEntraClient(upstreamOf({ ...entra, azure_entra_tenant_id: 'a/../b' }, secret))).toThrow(
    expect.objectContaining({ param: 'azure_entra_tenant_id' }),
  );
  expect(() => readEntraClient(upstreamOf({ azure_auth_mode: 'managed' }))).toThrow(
    expect.objectContaining({ param: 'azure_auth_mode' }),
  );
});
