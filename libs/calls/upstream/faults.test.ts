import { gzipSync } from 'node:zlib';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { afterEach, describe, expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { canary, chatRequest, completion, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import { hang, startUpstream, type UpstreamScript } from '#test/upstream.ts';
import type { JsonAnswer, Outcome } from '#libs/calls/call.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { createForwarder } from '#test/forwarder.ts';

let rig: ForwardingRig;
afterEach(async () => rig.stop());

async function settle(
  script: UpstreamScript,
  timeouts: Partial<Timeouts> = {},
  deps: Partial<Parameters<typeof createForwarder>[0]> = {},
): Promise<Outcome> {
  rig = await startForwardingRig(script, deps);
  return rig.forwarder.settle(chatRequest({ timeouts }), rig.target);
}

const failed = (code: string, kind = 'provider_failed') => ({ kind: 'failed', error: { kind, code } });
const toBodyObject = (outcome: Outcome): unknown => JSON.parse((outcome as JsonAnswer).body.toString());
const json = { 'content-type': 'application/json' };

describe('a provider that does not answer', () => {
  test('refuses the connection', async () => {
    const gone = await startUpstream();
    await gone.stop();
    rig = await startForwardingRig();
    const { createEgress } = await import('./egress/egress.ts');
    const { parseEgressAllow } = await import('./egress/egress-allow.ts');
    const { createForwarder } = await import('#test/forwarder.ts');
    const egress = createEgress({ allow: parseEgressAllow('127.0.0.0/8') });
    const forwarder = createForwarder({ egress, clock: { now: () => 0 }, random: () => 0 });
    const outcome = await forwarder.settle(chatRequest(), {
      ...rig.target,
      baseUrl: gone.url,
      secretOrigin: gone.url.origin,
    });
    expect(outcome).toMatchObject(failed('upstream_unreachable'));
    expect(outcome).toMatchObject({ error: { message: 'test-key could not be reached (ECONNREFUSED).' } });
    await egress.stop();
  });

  test.each([
    ['accepts and never replies', hang, { headersMs: 100 }, 'upstream_headers_timeout'],
    [
      'accepts and never replies, within the total',
      hang,
      { totalMs: 100 },
      'upstream_connect_timeout|upstream_total_timeout',
    ],
    [
      'sends half a head',
      (reply) => void reply.raw('HTTP/1.1 200 OK\r\ncontent-ty'),
      { headersMs: 100 },
      'upstream_headers_timeout',
    ],
    ['sends a head and falls silent', (reply) => reply.head(200, json), { idleMs: 100 }, 'upstream_idle_timeout'],
    [
      'sends half a body and falls silent',
      (reply) => reply.respond(200, '{"choi', { ...json, 'content-length': '50' }),
      { idleMs: 100 },
      'upstream_idle_timeout',
    ],
  ] as [string, UpstreamScript, Partial<Timeouts>, string][])('%s', async (_name, script, timeouts, code) => {
    const outcome = await settle(script, timeouts);
    expect(outcome).toMatchObject({ kind: 'failed', error: { kind: 'provider_timeout' } });
    expect(outcome).toMatchObject({ error: { code: expect.stringMatching(new RegExp(`^(${code})$`)) } });
    // The slot and the socket are free again.
    await rig.upstream.until(() => rig.upstream.connections().open === 0 && rig.egress.stats().sockets === 0);
    expect(rig.forwarder.counters()).toMatchObject({ openCalls: 0 });
  });

  test('sends its body so slowly that the total time runs out', async () => {
    const drip: UpstreamScript = async (reply) => {
      reply.head(200, json);
      while (!reply.isClosed()) {
        await reply.write(' ');
        await sleep(5);
      }
    };
    expect(await settle(drip, { totalMs: 200 })).toMatchObject(failed('upstream_total_timeout', 'provider_timeout'));
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test.each([
    ['closes', 'cut'],
    ['resets', 'reset'],
  ] as const)('%s the connection without a word', async (_name, how) => {
    expect(await settle((reply) => reply[how]())).toMatchObject(failed('upstream_connection_lost'));
  });

  test.each([
    ['closes', 'cut'],
    ['resets', 'reset'],
  ] as const)('%s the connection in the middle of a body', async (_name, how) => {
    const script: UpstreamScript = async (reply) => {
      await reply.raw('HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"choices":[');
      setTimeout(() => reply[how](), 20);
    };
    expect(await settle(script)).toMatchObject(failed('upstream_truncated'));
  });

  test("a caller who leaves frees the provider's connection at once", async () => {
    rig = await startForwardingRig(hang);
    const client = new CallAbort();
    const call = rig.forwarder.settle(chatRequest({ signal: client }), rig.target);
    await rig.upstream.until(() => rig.upstream.requests.length === 1);
    client.abort(new Error('left'));
    expect(await call).toMatchObject(failed('call_aborted', 'unavailable'));
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });
});

describe('interim answers', () => {
  const interim = 'HTTP/1.1 102 Processing\r\n\r\n';

  test('before an answer are ignored', async () => {
    const script: UpstreamScript = async (reply) => {
      await reply.raw(interim.repeat(200));
      reply.json(200, completion);
    };
    expect(await settle(script)).toMatchObject({ kind: 'json', status: 200 });
  });

  test('without end are not an answer, and end the call', async () => {
    const script: UpstreamScript = async (reply) => {
      while (!reply.isClosed()) await reply.raw(interim.repeat(100));
    };
    const outcome = await settle(script);
    expect(outcome).toMatchObject(failed('upstream_invalid_response'));
    expect(outcome).toMatchObject({ error: { message: expect.stringContaining('interim answers') } });
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });
});

test('header fields without end are not an answer, and end the call', async () => {
  const script: UpstreamScript = async (reply) => {
    await reply.raw('HTTP/1.1 200 OK\r\n');
    while (!reply.isClosed()) await reply.raw('x: y\r\n'.repeat(1_000));
  };
  expect(await settle(script)).toMatchObject(failed('upstream_invalid_response'));
  await rig.upstream.until(() => rig.upstream.connections().open === 0);
});

describe('an answer that is none', () => {
  const answers: [string, UpstreamScript, string][] = [
    ['invalid JSON', (reply) => reply.respond(200, '{"choices":[}', json), 'not valid JSON'],
    [
      'HTML with 200',
      (reply) => reply.respond(200, '<html>oops</html>', { 'content-type': 'text/html' }),
      '"<html>oops</html>"',
    ],
    ['an empty 200', (reply) => reply.respond(200, ''), 'an empty body'],
    ['a 204', (reply) => void reply.raw('HTTP/1.1 204 No Content\r\n\r\n'), 'returned status 204 with an empty body'],
    ['JSON null', (reply) => reply.respond(200, 'null', json), 'no "choices" list'],
    ['a JSON list', (reply) => reply.respond(200, '[]', json), 'no "choices" list'],
    ['another object', (reply) => reply.respond(200, '{"ok":true}', json), '{\\"ok\\":true}'],
    [
      'a stream nobody asked for',
      (reply) => reply.respond(200, 'data: {}\n\n', { 'content-type': 'text/event-stream' }),
      'not valid JSON',
    ],
    [
      'bytes that are no UTF-8',
      (reply) => reply.respond(200, Buffer.from('{"choices":["\xff"]}', 'latin1'), json),
      'not valid JSON',
    ],
    [
      'a compressed body',
      (reply) => reply.respond(200, gzipSync(Buffer.alloc(10_000_000)), { ...json, 'content-encoding': 'gzip' }),
      'compressed',
    ],
    ['no HTTP at all', (reply) => void reply.raw('SSH-2.0-OpenSSH_9.6\r\n'), 'HTTP'],
  ];

  test.each(answers)('%s says so', async (_name, script, part) => {
    const outcome = await settle(script);
    expect(outcome).toMatchObject({
      ...failed('upstream_invalid_response'),
      attempts: [{ errorCode: 'upstream_invalid_response' }],
    });
    expect(outcome).toMatchObject({ error: { message: expect.stringContaining(part) } });
  });

  test('a JSON answer with another content type is accepted as JSON', async () => {
    const outcome = await settle((reply) =>
      reply.respond(200, JSON.stringify(completion), { 'content-type': 'text/plain' }),
    );
    expect(outcome).toMatchObject({ kind: 'json', status: 200, contentType: 'application/json' });
  });

  test('the sample of an unreadable body is at most 1 kB and holds no credential', async () => {
    const page = `<html>Bearer ${canary} ${canary} sk-other-0123456789 \u001b[31m${'x'.repeat(100_000)}`;
    const outcome = await settle((reply) => reply.respond(200, page));
    const { message } = (outcome as { error: Error }).error;
    expect(message.length).toBeLessThanOrEqual(1_200);
    expect(message).not.toMatch(/CANARY|sk-other/);
    expect(message).not.toContain('\u001b');
  });

  test('a body beyond the limit is not read to its end, whether or not its length is known', async () => {
    const limits = { jsonBytesMax: 100_000 };
    const announced: UpstreamScript = (reply) => reply.respond(200, 'x', { 'content-length': '100001' });
    expect(await settle(announced, {}, { limits })).toMatchObject(failed('upstream_response_too_large'));
    await rig.stop();
    let written = 0;
    const endless: UpstreamScript = async (reply) => {
      reply.head(200, json);
      for (; !reply.isClosed() && written < 1_000; written += 1) await reply.write('x'.repeat(50_000));
    };
    expect(await settle(endless, {}, { limits })).toMatchObject(failed('upstream_response_too_large'));
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
    expect(written).toBeLessThan(1_000);
  });

  test.each([246, 446, 600, 999])('a status that is none of a provider’s (%i) is not passed on', async (status) => {
    const outcome = await settle((reply) => reply.respond(status, '{"choices":[]}'));
    expect(outcome).toMatchObject(failed('upstream_invalid_response'));
  });

  test.each([301, 302, 303, 307, 308])('a redirect (%i) is not followed', async (status) => {
    const elsewhere = await startUpstream();
    const outcome = await settle((reply) => reply.respond(status, '', { location: elsewhere.url.href }));
    expect(outcome).toMatchObject(failed('upstream_redirect'));
    expect(elsewhere.connections().accepted).toBe(0);
    await elsewhere.stop();
  });
});

describe('the provider’s errors', () => {
  const error = { message: 'No such model', type: 'invalid_request_error', param: 'model', code: 'model_not_found' };

  test('in OpenAI’s shape pass byte for byte, with their status and retry headers', async () => {
    const bytes = `{ "error": {"message":"Slow down","type":"requests","param":null,"code":"rate_limit_exceeded","extra":1.0} }`;
    const outcome = await settle((reply) =>
      reply.respond(429, bytes, { ...json, 'retry-after': '7', 'x-request-id': 'r1' }),
    );
    expect(outcome).toMatchObject({
      kind: 'json',
      status: 429,
      headers: { 'retry-after': '7' },
      providerRequestId: 'r1',
    });
    expect((outcome as JsonAnswer).body.toString()).toBe(bytes);
    expect(outcome.attempts).toMatchObject([{ status: 429, errorCode: 'rate_limit_exceeded' }]);
  });

  test.each([
    [
      'a text',
      400,
      '{"error":"bad things"}',
      { message: 'bad things', type: 'invalid_request_error', param: null, code: null },
    ],
    [
      'flat',
      404,
      '{"message":"no model","code":"nf","object":"error"}',
      { message: 'no model', type: 'invalid_request_error', param: null, code: 'nf' },
    ],
    [
      'a list of findings',
      422,
      '{"detail":[{"loc":["body"],"msg":"x"}]}',
      { message: '[{"loc":["body"],"msg":"x"}]', type: 'invalid_request_error', param: null, code: null },
    ],
    [
      'an object without all keys',
      400,
      '{"error":{"message":"m","code":400}}',
      { message: 'm', type: 'invalid_request_error', param: null, code: '400' },
    ],
    [
      'a page',
      503,
      '<h1>Unavailable</h1>',
      {
        message:
          'The provider returned status 503 with a body that is not JSON. It starts with: "<h1>Unavailable</h1>"',
        type: 'server_error',
        param: null,
        code: null,
      },
    ],
    [
      'nothing',
      500,
      '',
      { message: 'The provider returned status 500.', type: 'server_error', param: null, code: null },
    ],
    ['null', 500, 'null', { message: 'null', type: 'server_error', param: null, code: null }],
  ])('that are %s are brought into its shape', async (_name, status, body, expected) => {
    const outcome = await settle((reply) => reply.respond(status, body));
    expect(outcome).toMatchObject({ kind: 'json', status, contentType: 'application/json' });
    expect(toBodyObject(outcome)).toEqual({ error: expected });
  });

  test.each([
    ['in the message', { error: { ...error, message: `Incorrect API key provided: ${canary}.` } }],
    ['anywhere else', { error, debug: { headers: [`authorization: Bearer ${canary}`] } }],
    ['as a code', { error: { ...error, code: canary } }],
    ['that is another’s', { error: { ...error, message: 'key sk-proj-0123456789abcdef is over quota' } }],
  ])('that repeat a credential %s are scrubbed', async (_name, body) => {
    const outcome = await settle((reply) => reply.json(401, body));
    expect(outcome).toMatchObject({ kind: 'json', status: 401 });
    expect(JSON.stringify(toBodyObject(outcome))).not.toMatch(/CANARY|sk-proj/);
    expect(toBodyObject(outcome)).toMatchObject({ error: { type: 'invalid_request_error', param: 'model' } });
    expect(JSON.stringify(outcome)).not.toContain('CANARY');
  });

  test('that hide the credential behind escapes are scrubbed as well', async () => {
    const hidden = canary.replace('CANARY', '\\u0043ANARY');
    const body = `{"error":{"message":"key ${hidden}","type":"t","param":null,"code":null}}`;
    expect(JSON.stringify(toBodyObject(await settle((reply) => reply.respond(401, body))))).not.toContain('CANARY');
  });

  test('that are endless are cut', async () => {
    const outcome = await settle(async (reply) => {
      reply.head(500);
      while (!reply.isClosed()) await reply.write('x'.repeat(50_000));
    });
    expect(outcome).toMatchObject({ kind: 'json', status: 500 });
    expect((outcome as JsonAnswer).body.length).toBeLessThan(3_000);
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test('inside a 200 are errors', async () => {
    const outcome = await settle((reply) => reply.json(200, { error: { message: 'upstream said no', code: 403 } }));
    expect(outcome).toMatchObject({ kind: 'json', status: 403 });
    await rig.stop();
    expect(await settle((reply) => reply.json(200, { error: 'broken' }))).toMatchObject({ kind: 'json', status: 502 });
  });

  test('that waiting does not cure tell clients not to retry', async () => {
    const quota = { error: { ...error, type: 'insufficient_quota', code: 'insufficient_quota' } };
    const outcome = await settle((reply) => reply.json(429, quota));
    expect(outcome).toMatchObject({ status: 429, headers: { 'x-should-retry': 'false' } });
  });
});
