import { expect, test } from 'vitest';
import type { CorsOrigins } from './cors.ts';
import { serveForTest, testRoute } from './http-test-kit.ts';

const routes = [
  testRoute({
    method: 'POST',
    path: '/v1/chat/completions',
    handler: (_request, response) => {
      response.writeHead(200, ['content-type', 'application/json', 'x-gateway-provider', 'openai']);
      response.end('{}');
    },
  }),
];
const page = 'https://app.example';
const serve = (cors?: CorsOrigins) => serveForTest(routes, { deps: { cors } });
const preflight = {
  method: 'OPTIONS',
  headers: {
    origin: page,
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization,content-type,x-gateway-config',
  },
};
const call = (origin: string, key = 'Bearer all') => ({ method: 'POST', headers: { origin, authorization: key } });
const corsHeaders = ({ headers }: Response) => [...headers.keys()].filter((name) => name.startsWith('access-control-'));

test('no page may call unless its origin is configured', async () => {
  await using server = await serve();
  const asked = await fetch(`${server.url}/v1/chat/completions`, preflight);
  expect([asked.status, corsHeaders(asked)]).toEqual([405, []]);
  const answer = await fetch(`${server.url}/v1/chat/completions`, call(page));
  expect([answer.status, corsHeaders(answer)]).toEqual([200, []]);
});

test('a preflight of a configured origin is answered without a key', async () => {
  await using server = await serve(new Set([page, 'http://localhost:3000']));
  const answer = await fetch(`${server.url}/v1/chat/completions`, preflight);
  expect(answer.status).toBe(204);
  expect(Object.fromEntries(answer.headers)).toMatchObject({
    'access-control-allow-origin': page,
    'access-control-allow-headers': 'authorization,content-type,x-gateway-config',
    'access-control-allow-methods': 'GET, POST, PUT, DELETE',
    vary: 'Origin',
    'x-request-id': expect.stringMatching(/^req_/),
  });
  expect(answer.headers.get('access-control-allow-credentials')).toBeNull();
});

test('answers and errors can be read by pages of a configured origin, our headers too', async () => {
  await using server = await serve(new Set([page]));
  for (const [key, status] of [
    ['Bearer all', 200],
    ['Bearer wrong', 401],
  ] as const) {
    const answer = await fetch(`${server.url}/v1/chat/completions`, call(page, key));
    expect([answer.status, answer.headers.get('access-control-allow-origin')]).toEqual([status, page]);
    const exposed = answer.headers.get('access-control-expose-headers')?.split(', ');
    expect(exposed).toEqual(expect.arrayContaining(['x-request-id', 'x-gateway-provider', 'retry-after']));
  }
});

test('another origin gets nothing, and what asks for odd headers gets no leave for them', async () => {
  await using server = await serve(new Set([page]));
  const other = { ...preflight, headers: { ...preflight.headers, origin: 'https://evil.example' } };
  const refused = await fetch(`${server.url}/v1/chat/completions`, other);
  expect([refused.status, corsHeaders(refused), refused.headers.get('vary')]).toEqual([405, [], 'Origin']);
  const odd = { ...preflight, headers: { ...preflight.headers, 'access-control-request-headers': 'a b, *' } };
  const answer = await fetch(`${server.url}/v1/chat/completions`, odd);
  expect(answer.headers.get('access-control-allow-headers')).toBeNull();
});

test('with any origin allowed, the answer names none and never allows credentials', async () => {
  await using server = await serve('any');
  for (const request of [preflight, call('null')]) {
    const answer = await fetch(`${server.url}/v1/chat/completions`, request);
    expect(answer.headers.get('access-control-allow-origin')).toBe('*');
    expect(answer.headers.get('access-control-allow-credentials')).toBeNull();
  }
});
