import { afterEach, describe, expect, test } from 'vitest';
import { canary, chatRequest, completion, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import type { UpstreamScript } from '#test/upstream.ts';
import type { JsonAnswer, Target } from './call.ts';

let rig: ForwardingRig;
afterEach(async () => rig.stop());

const answers =
  (status: number, body: unknown, headers: Record<string, string> = {}): UpstreamScript =>
  (reply) =>
    reply.json(status, body, headers);

const failing = (code: string, kind = 'provider_failed') => expect.objectContaining({ kind, code });

/** Returns the outcome of one chat call with a scripted answer, if that is a whole body. */
async function call(script: UpstreamScript, options: Parameters<typeof chatRequest>[0] = {}): Promise<JsonAnswer> {
  rig = await startForwardingRig(script);
  const answer = await rig.forwarder.forward(chatRequest(options), rig.target);
  if (answer.kind !== 'json') throw new Error('a body was expected');
  return answer;
}

describe('bytes pass through', () => {
  const text = `{ "model" : "gpt-test","seed":9223372036854775807, "x":1.0,"x":1e2,\n"unknown":{"a":null},"messages":[{"role":"user","content":"\\u00e9é😀"}] }`;

  test('the provider receives the bytes that the client wrote, and the client the bytes that the provider wrote', async () => {
    const body = `{"choices":[], "big":12345678901234567890, "dup":1,"dup":2,\r\n "unknown":{"é":"\\u00e9"}}`;
    const answer = await call((reply) => reply.respond(200, body, { 'content-type': 'application/json' }), { text });
    expect(rig.upstream.requests[0]?.body.toString()).toBe(text);
    expect(answer.body.toString()).toBe(body);
    expect(answer).toMatchObject({ status: 200, contentType: 'application/json' });
  });

  test('the target’s model replaces the client’s and no other byte', async () => {
    rig = await startForwardingRig(answers(200, completion));
    await rig.forwarder.forward(chatRequest({ text }), { ...rig.target, model: 'other/"m"' });
    expect(rig.upstream.requests[0]?.body.toString()).toBe(text.replace('"gpt-test"', '"other/\\"m\\""'));
  });

  test('overrides are spliced: set, added and removed', async () => {
    await call(answers(200, completion), { text, edits: { seed: '1', unknown: undefined, temperature: '0.5' } });
    expect(rig.upstream.requests[0]?.body.toString()).toBe(
      text
        .replace('9223372036854775807', '1')
        .replace(',\n"unknown":{"a":null}', '')
        .replace('}] }', '}],"temperature":0.5 }'),
    );
  });

  test('only the headers that the provider needs are sent', async () => {
    await call(answers(200, completion), {
      headers: {
        'openai-organization': 'org-1',
        authorization: 'Bearer gateway-key',
        cookie: 'a=b',
        'x-gateway-api-key': 'gateway-key',
        'x-gateway-metadata': '{}',
        'x-forwarded-for': '10.0.0.1',
      },
    });
    const [request] = rig.upstream.requests;
    expect(request).toMatchObject({ method: 'POST', path: '/v1/chat/completions' });
    expect(request?.headers).toEqual({
      host: `127.0.0.1:${rig.upstream.port}`,
      connection: 'keep-alive',
      accept: 'application/json',
      'accept-encoding': 'identity',
      authorization: `Bearer ${canary}`,
      'content-length': String(request?.body.length),
      'content-type': 'application/json',
      'openai-organization': 'org-1',
      'user-agent': 'sluice',
    });
  });

  test.each([
    ['completions', '/base/completions'],
    ['embeddings', '/base/embeddings'],
    ['chat', '/base/chat/completions'],
  ] as const)('%s goes to %s below the base URL, with its query', async (operation, path) => {
    rig = await startForwardingRig(answers(200, { choices: [], data: [] }));
    const baseUrl = new URL(`${rig.upstream.url.origin}/base/?api-version=1`);
    await rig.forwarder.forward(chatRequest({ operation }), { ...rig.target, baseUrl });
    expect(rig.upstream.requests[0]?.path).toBe(`${path}?api-version=1`);
  });

  test('a target without a key sends none', async () => {
    rig = await startForwardingRig(answers(200, completion));
    await rig.forwarder.forward(chatRequest(), { ...rig.target, apiKey: null });
    expect(rig.upstream.requests[0]?.headers).not.toHaveProperty('authorization');
  });
});

describe('what an answer tells', () => {
  test('usage, model, finish reason, request id and the headers that clients use', async () => {
    const answer = await call(
      answers(200, completion, {
        'x-request-id': 'req_upstream',
        'retry-after': '1',
        'x-ratelimit-remaining-requests': '59',
        'openai-processing-ms': '12',
        'set-cookie': 'session=1',
        server: 'secret-proxy',
        'openai-organization': 'the-operator',
      }),
    );
    expect(answer).toMatchObject({
      usage: { inputTokens: 12, cachedTokens: 4, outputTokens: 7, reasoningTokens: 3 },
      model: 'gpt-test-2026',
      finishReason: 'stop',
      providerRequestId: 'req_upstream',
    });
    expect(answer.headers).toEqual({
      'retry-after': '1',
      'x-ratelimit-remaining-requests': '59',
      'openai-processing-ms': '12',
    });
    expect(answer.attempts).toEqual([
      {
        startedAt: rig.now(),
        durationMs: expect.any(Number),
        status: 200,
        errorCode: null,
        to: { target: rig.target, model: 'gpt-test' },
        paid: {
          responseModel: 'gpt-test-2026',
          usage: { inputTokens: 12, cachedTokens: 4, outputTokens: 7, reasoningTokens: 3 },
        },
      },
    ]);
  });

  test('usage that is missing is null, and absurd counts are ignored', async () => {
    expect((await call(answers(200, { choices: [] }))).usage).toBeNull();
    await rig.stop();
    const usage = { prompt_tokens: -5, completion_tokens: 1e300, prompt_tokens_details: null };
    expect((await call(answers(200, { choices: [], usage }))).usage).toEqual({
      inputTokens: 0,
      cachedTokens: 0,
      outputTokens: 0,
      reasoningTokens: 0,
    });
  });

  test("models are listed in OpenAI's format, also for a server that sends a bare list", async () => {
    rig = await startForwardingRig(answers(200, [{ id: 'm', object: 'model' }]));
    const answer = await rig.forwarder.listModels(rig.target, new AbortController().signal);
    expect(rig.upstream.requests[0]).toMatchObject({ method: 'GET', path: '/v1/models' });
    expect(answer).toMatchObject({ kind: 'json', status: 200 });
    expect(String((answer as JsonAnswer).body)).toBe('{"object":"list","data":[{"id":"m","object":"model"}]}');
  });
});

describe('refusals before any connection', () => {
  const refusals: [string, Partial<Target>, string, string][] = [
    ['an unknown provider', { provider: 'nobody' }, 'invalid_request', 'unknown_provider'],
    [
      'an operation that the provider lacks',
      { provider: 'perplexity' },
      'unsupported_operation',
      'unsupported_operation',
    ],
    [
      'a stored key for another origin',
      { secretOrigin: 'https://api.openai.com' },
      'invalid_request',
      'credential_origin_mismatch',
    ],
    ['another scheme', { baseUrl: new URL('ftp://127.0.0.1/') }, 'invalid_request', 'destination_not_allowed'],
    [
      'a private address',
      { baseUrl: new URL('http://10.0.0.1/v1'), secretOrigin: null },
      'invalid_request',
      'destination_not_allowed',
    ],
  ];

  test.each(refusals)('%s', async (_name, change, kind, code) => {
    rig = await startForwardingRig(answers(200, completion));
    const target = { ...rig.target, ...change };
    const outcome = await rig.forwarder.settle(chatRequest({ operation: 'embeddings' }), target);
    expect(outcome).toMatchObject({ kind: 'failed', error: { kind, code }, attempts: [] });
    expect(JSON.stringify(outcome)).not.toContain('CANARY');
    expect(rig.upstream.connections().accepted).toBe(0);
  });

  test('a credential with a line break is refused and not shown', async () => {
    rig = await startForwardingRig(answers(200, completion));
    const { Secret } = await import('#libs/kernel/logging/secret.ts');
    const apiKey = new Secret(`${canary}\r\nx-evil: 1`);
    const error: unknown = await rig.forwarder
      .forward(chatRequest(), { ...rig.target, apiKey })
      .catch((e: unknown) => e);
    expect(error).toEqual(failing('invalid_header', 'invalid_request'));
    expect(String(error)).not.toContain('CANARY');
    expect(rig.upstream.requests).toEqual([]);
  });
});

test('a pass-through call is bounded by the timeouts of its process', async () => {
  const timeouts = { connectMs: 1_000, headersMs: 50, idleMs: 1_000, totalMs: 5_000 };
  rig = await startForwardingRig(() => {}, { timeouts });
  const call = { area: 'audio', method: 'POST', path: '/audio/speech', accept: null, headers: {} } as const;
  const sent = { ...call, model: null, body: null, contentType: null, contentLength: null };
  const { signal } = new AbortController();
  await expect(rig.forwarder.relay({ ...sent, signal }, rig.target)).rejects.toMatchObject({
    code: 'upstream_headers_timeout',
  });
});
