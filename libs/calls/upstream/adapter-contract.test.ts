import { afterEach, describe, expect, test } from 'vitest';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Provider, Translation } from '#libs/providers/provider.ts';
import { canary, chatRequest, completion, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import { hang, type UpstreamScript } from '#test/upstream.ts';
import type { JsonAnswer, Target } from '#libs/calls/call.ts';

// The tasks of the core for adapters besides passing bytes: signing, tokens, images, dropped parameters.

const chat: Translation = {
  encode: (call, { baseUrl }) => ({
    method: 'POST',
    origin: baseUrl.origin,
    path: '/call',
    headers: [],
    body: Buffer.from(
      JSON.stringify([...call.resources].map(([url, { contentType, bytes }]) => [url, contentType, bytes.toString()])),
    ),
  }),
  decodeError: (_status, body) => ({ error: { message: body, type: null, param: null, code: null } }),
};
const plain: Provider = {
  id: 'plain',
  baseUrlOf: () => null,
  needsCredential: true,
  clientHeaders: [],
  requestIdHeaders: [],
  operations: { chat },
};
const policy = { attemptsMax: 3, baseDelayMs: 100, maxDelayMs: 1_000, deadlineAt: 1_800_000_000_000 };

let rig: ForwardingRig;
let target: Target;
afterEach(async () => rig.stop());

async function start(provider: Partial<Provider>, translation: Partial<Translation> = {}, script: UpstreamScript = ok) {
  const made = { ...plain, operations: { chat: { ...chat, ...translation } }, ...provider };
  rig = await startForwardingRig(script, { providers: () => made });
  target = { ...rig.target, provider: 'plain', secrets: { aws_secret_access_key: new Secret('sekret-of-the-bucket') } };
}

const ok: UpstreamScript = (reply, { path }) => {
  if (path === '/token') reply.json(200, { token: 'token-of-the-hour' });
  else reply.json(200, completion);
};
const dropping = (...dropped: string[]): Partial<Translation> => ({
  encode: (call, upstream) => ({ ...chat.encode(call, upstream), dropped }),
});

describe('parameters that a provider cannot take', () => {
  test('are named in a header, and refused where the caller wants that, before any connection', async () => {
    await start({}, dropping('logit_bias', 'messages[0].name'));
    const answer = await rig.forwarder.forward(chatRequest(), target);
    expect(answer.headers['x-gateway-dropped-params']).toBe('logit_bias, messages[0].name');
    const connections = rig.upstream.connections().accepted;
    const outcome = await rig.forwarder.settle(chatRequest({ unsupportedParams: 'refuse' }), target, policy);
    expect(outcome).toMatchObject({
      kind: 'failed',
      error: { kind: 'invalid_request', code: 'unsupported_parameter', param: 'logit_bias' },
      attempts: [],
    });
    expect(outcome).toMatchObject({ error: { message: expect.stringContaining('logit_bias, messages[0].name') } });
    expect([rig.upstream.connections().accepted, rig.upstream.requests.length]).toEqual([connections, 1]);
  });

  test('are named with an error and with a stream, too', async () => {
    await start({}, dropping('seed'), (reply) => reply.json(400, { error: 'no' }));
    expect((await rig.forwarder.forward(chatRequest(), target)).headers).toMatchObject({
      'x-gateway-dropped-params': 'seed',
    });
    rig.upstream.script((reply) => reply.json(200, completion));
    expect(await rig.forwarder.forward(chatRequest({ stream: true }), target)).toMatchObject({
      kind: 'stream',
      headers: { 'x-gateway-dropped-params': 'seed' },
    });
  });

  test('may have names that no header could carry, and may be many', async () => {
    await start(
      {},
      dropping('ключ', 'a\r\nset-cookie: b', 'c,d', '\ud800', ...Array.from({ length: 500 }, (_, at) => `p${at}`)),
    );
    const { headers } = await rig.forwarder.forward(chatRequest(), target);
    const dropped = headers['x-gateway-dropped-params'] ?? '';
    expect(dropped).toMatch(
      /^%D0%BA%D0%BB%D1%8E%D1%87, a%0D%0Aset-cookie:%20b, c%2Cd, %EF%BF%BD, p0, .* and \d+ more$/,
    );
    expect(dropped.length).toBeLessThan(1_100);
  });
});

describe('a provider that signs or needs a token', () => {
  const withToken: Partial<Provider> = {
    authorize: async (request, { baseUrl }, { fetch, keepSecret }) => {
      const { status, body } = await fetch({
        method: 'POST',
        origin: baseUrl.origin,
        path: '/token',
        headers: [],
        body: null,
      });
      const { token } = JSON.parse(body.toString()) as { token: string };
      keepSecret(token);
      request.headers.push('authorization', `Bearer ${token}`, 'x-status', String(status));
    },
  };

  test('gets its headers just before each attempt', async () => {
    await start(withToken);
    let calls = 0;
    rig.upstream.script((reply, request) => {
      if (request.path === '/token') return ok(reply, request);
      calls += 1;
      reply.json(calls === 1 ? 500 : 200, calls === 1 ? {} : completion);
    });
    const outcome = await rig.forwarder.settle(chatRequest(), target, policy);
    expect(outcome).toMatchObject({ kind: 'json', status: 200 });
    expect(rig.upstream.requests.map(({ path, headers }) => [path, headers['authorization']])).toEqual([
      ['/token', undefined],
      ['/call', 'Bearer token-of-the-hour'],
      ['/token', undefined],
      ['/call', 'Bearer token-of-the-hour'],
    ]);
  });

  test('never has its token or credentials repeated in an error', async () => {
    const echo = {
      error: {
        message: `no: ${canary} token-of-the-hour sekret-of-the-bucket`,
        type: 'x',
        param: null,
        code: 'sekret-of-the-bucket',
      },
    };
    await start(withToken);
    rig.upstream.script((reply, request) => (request.path === '/token' ? ok(reply, request) : reply.json(401, echo)));
    const { body } = (await rig.forwarder.forward(chatRequest(), target)) as JsonAnswer;
    expect(JSON.parse(body.toString())).toMatchObject({
      error: { message: expect.stringContaining('no: [redacted] [redacted] [redacted]') },
    });
    expect(body.toString()).not.toMatch(/CANARY|token-of|sekret/);
    // Nor in an error that the core makes of an unreadable body.
    rig.upstream.script((reply, request) =>
      request.path === '/token'
        ? ok(reply, request)
        : reply.respond(200, `<p>${canary} token-of-the-hour sekret-of-the-bucket`),
    );
    const failed = await rig.forwarder.settle(chatRequest(), target);
    expect(failed).toMatchObject({ kind: 'failed', error: { code: 'upstream_invalid_response' } });
    expect(JSON.stringify(failed) + (failed.kind === 'failed' ? failed.error.message : '')).not.toMatch(
      /CANARY|token-of|sekret/,
    );
  });

  test('has none repeated in an error that its own translation finds in an answer', async () => {
    const decode = (body: unknown): never => {
      throw new GatewayError('provider_failed', 'upstream_error', (body as { said: string }).said);
    };
    await start({}, { decode }, (reply) => reply.json(200, { said: `${canary} failed` }));
    const outcome = await rig.forwarder.settle(chatRequest(), target, policy);
    expect(outcome).toMatchObject({
      kind: 'failed',
      error: { kind: 'provider_failed', code: 'upstream_error', message: '[redacted] failed' },
    });
    expect(outcome.attempts).toHaveLength(3); // A failure that a 200 reports can be temporary.
  });

  test('whose token server fails is retried by the policy, and each try is recorded', async () => {
    await start(withToken);
    let tokens = 0;
    rig.upstream.script((reply, request) => {
      tokens += 1;
      if (tokens === 1) return reply.reset();
      return ok(reply, request);
    });
    const outcome = await rig.forwarder.settle(chatRequest(), target, policy);
    expect(outcome).toMatchObject({ kind: 'json', status: 200 });
    expect(outcome.attempts).toMatchObject([{ status: null, errorCode: 'upstream_connection_lost' }, { status: 200 }]);
    expect(rig.waits).toEqual([50]);
  });

  test('is refused at once for a credential that cannot be used', async () => {
    await start({
      authorize: () => Promise.reject(new GatewayError('invalid_request', 'invalid_credential', 'No key file.')),
    });
    const outcome = await rig.forwarder.settle(chatRequest(), target, policy);
    expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'invalid_credential' }, attempts: [] });
    expect([rig.upstream.requests, rig.waits]).toEqual([[], []]);
  });

  test.each(['http://169.254.169.254', 'http://[::1]:1', 'file:///etc'])(
    'is sent for no token to %s',
    async (origin) => {
      await start({
        authorize: async (_request, _upstream, { fetch }) => {
          await fetch({ method: 'GET', origin, path: '/', headers: [], body: null });
        },
      });
      await expect(rig.forwarder.forward(chatRequest(), target)).rejects.toMatchObject({
        code: 'destination_not_allowed',
      });
    },
  );

  test('reads no token from a redirect, from a megabyte, or from a compressed answer', async () => {
    await start(withToken);
    const scripts: [UpstreamScript, string][] = [
      [(reply) => reply.respond(302, '', { location: 'http://127.0.0.1/' }), 'upstream_redirect'],
      [(reply) => reply.respond(200, 'x'.repeat(1_048_577)), 'upstream_response_too_large'],
      [(reply) => reply.respond(200, 'x', { 'content-encoding': 'gzip' }), 'upstream_invalid_response'],
    ];
    for (const [script, code] of scripts) {
      rig.upstream.script(script);
      await expect(rig.forwarder.forward(chatRequest(), target)).rejects.toMatchObject({ code });
    }
  });

  test('is cancelled with its caller, even while it waits for a token', async () => {
    await start(withToken, {}, hang);
    const caller = new CallAbort();
    const call = rig.forwarder.settle(chatRequest({ signal: caller }), target, policy);
    await rig.upstream.until(() => rig.upstream.requests.length === 1);
    caller.abort(new Error('left'));
    expect(await call).toMatchObject({ kind: 'failed', error: { code: 'call_aborted' } });
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });
});

test('a stored credential is not sent elsewhere, whatever address an adapter makes', async () => {
  await start({}, { encode: (call, upstream) => ({ ...chat.encode(call, upstream), origin: 'http://127.0.0.2:1' }) });
  const outcome = await rig.forwarder.settle(chatRequest(), target, policy);
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'credential_origin_mismatch' } });
  expect(rig.upstream.connections().accepted).toBe(0);
});

describe('images that a provider must get as bytes', () => {
  const wanting = (...paths: string[]): Partial<Translation> => ({
    resourcesOf: () =>
      paths.map((path) => (path.includes(':') ? path : `http://127.0.0.1:${rig.upstream.port}${path}`)),
  });
  const images: UpstreamScript = (reply, request) => {
    if (request.path === '/call') return ok(reply, request);
    reply.respond(200, `bytes of ${request.path}`, { 'content-type': 'image/png; charset=binary' });
  };

  test('are fetched once per call, without any credential, and are used in every attempt', async () => {
    await start({}, wanting('/a.png?x=1', '/b.png', '/b.png'));
    let calls = 0;
    rig.upstream.script((reply, request) => {
      if (request.path !== '/call') return images(reply, request);
      calls += 1;
      reply.json(calls === 1 ? 503 : 200, calls === 1 ? {} : completion);
    });
    expect(await rig.forwarder.settle(chatRequest(), target, policy)).toMatchObject({ status: 200 });
    const [a, b] = ['/a.png?x=1', '/b.png'].map((path) => [
      `http://127.0.0.1:${rig.upstream.port}${path}`,
      'image/png',
      `bytes of ${path}`,
    ]);
    const sent = rig.upstream.requests.filter(({ path }) => path === '/call');
    expect(sent.map(({ body }) => JSON.parse(body.toString()) as unknown)).toEqual([
      [a, b],
      [a, b],
    ]);
    const fetched = rig.upstream.requests.filter(({ path }) => path !== '/call');
    expect(fetched.map(({ path }) => path).toSorted()).toEqual(['/a.png?x=1', '/b.png']);
    expect(fetched.map(({ bytes }) => bytes.toString()).join('')).not.toMatch(/CANARY|authorization/i);
  });

  test.each([
    ['http://169.254.169.254/latest', 'destination_not_allowed'],
    ['file:///etc/passwd', 'destination_not_allowed'],
    ['not a: url', 'resource_unavailable'],
  ])('are not fetched from %s', async (url, code) => {
    await start({}, wanting(url), images);
    await expect(rig.forwarder.forward(chatRequest(), target)).rejects.toMatchObject({ kind: 'invalid_request', code });
    expect(rig.upstream.requests).toEqual([]);
  });

  test('that are missing, moved, too large, compressed or too many end the call as an error of the caller', async () => {
    await start({}, wanting('/a.png'));
    const scripts: UpstreamScript[] = [
      (reply) => reply.respond(404, 'gone'),
      (reply) => reply.respond(301, '', { location: 'http://169.254.169.254/' }),
      (reply) => reply.respond(200, Buffer.alloc(5_242_881)),
      (reply) => reply.respond(200, 'x', { 'content-encoding': 'gzip' }),
      (reply) => reply.reset(),
    ];
    for (const script of scripts) {
      rig.upstream.script(script);
      const outcome = await rig.forwarder.settle(chatRequest(), target, policy);
      expect(outcome).toMatchObject({
        kind: 'failed',
        error: { kind: 'invalid_request', code: 'resource_unavailable', param: 'messages' },
      });
    }
    expect(rig.waits).toEqual([]);
    await rig.stop();
    await start({}, wanting(...Array.from({ length: 21 }, (_, at) => `/${at}.png`)), images);
    await expect(rig.forwarder.forward(chatRequest(), target)).rejects.toMatchObject({ code: 'too_many_resources' });
  });

  test('have a common size limit, and one that fails ends the others', async () => {
    await start({}, wanting('/0', '/1', '/2', '/3', '/4', '/5'), (reply) =>
      reply.respond(200, Buffer.alloc(5_000_000)),
    );
    await expect(rig.forwarder.forward(chatRequest(), target)).rejects.toMatchObject({
      code: 'resource_unavailable',
      message: expect.stringContaining('26214400 bytes'),
    });
    rig.upstream.script((reply, { path }) => (path === '/0' ? reply.respond(404, '') : undefined));
    await expect(rig.forwarder.forward(chatRequest(), target)).rejects.toMatchObject({ code: 'resource_unavailable' });
    await rig.upstream.until(() => rig.forwarder.counters().sockets <= 1);
  });
});
