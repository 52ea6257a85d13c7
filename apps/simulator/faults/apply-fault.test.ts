import { expect, test, vi } from 'vitest';
import { dataOf, startTestSimulator, type Json } from '#test/test-simulator.ts';

const { chat, raw, openai, url, simulator } = await startTestSimulator({ dripIntervalMs: 1, clock: { now: () => 0 } });
const fault = (name: string, fields: Json = {}) => chat({ model: `sim-fault-${name}`, ...fields });
const streamed = (name: string, fields: Json = {}) => raw({ model: `sim-fault-${name}`, stream: true, ...fields });
const getFailureCode = async (response: Response) => ((await response.json()) as { error: Json }).error;
/** The body of a raw reply, without the chunk framing. */
const toBodyObject = ({ text }: { text: string }) =>
  text.slice(text.indexOf('\r\n\r\n') + 4).replaceAll(/(^|\r\n)[0-9a-f]+\r\n/g, '');
const endsOrderly = ({ text }: { text: string }) => text.endsWith('\r\n0\r\n\r\n');

test.for<[string, string | null, string | null]>([
  ['429', '1', null],
  ['429-after-120', '120', null],
  ['429-ms', null, '50'],
  ['429-date', 'Thu, 01 Jan 1970 00:00:02 GMT', null],
  ['429-none', null, null],
  ['429-negative', '-5', null],
])('%s tells when to retry', async ([name, seconds, ms]) => {
  const response = await fault(name);
  expect(response.status).toBe(429);
  expect([response.headers.get('retry-after'), response.headers.get('retry-after-ms')]).toEqual([seconds, ms]);
  expect(await getFailureCode(response)).toMatchObject({ code: 'rate_limit_exceeded' });
});

test('an exhausted quota says not to retry', async () => {
  const response = await fault('429-quota');
  expect(response.headers.get('x-should-retry')).toBe('false');
  expect(await getFailureCode(response)).toMatchObject({ type: 'insufficient_quota', code: 'insufficient_quota' });
});

test('statuses have error bodies of their kind, or a page', async () => {
  for (const status of [400, 401, 404, 500, 503, 529]) {
    const response = await fault(String(status), { stream: true });
    expect(response.status).toBe(status);
    expect(Object.keys(await getFailureCode(response))).toEqual(['message', 'type', 'param', 'code']);
  }
  const page = await fault('html-502');
  expect([page.status, page.headers.get('content-type')]).toEqual([502, 'text/html; charset=utf-8']);
});

test('faults that pass do so for each prompt by itself', async () => {
  const statuses = async (model: string, content: string, count: number) => {
    const seen: number[] = [];
    for (let call = 0; call < count; call++)
      seen.push((await chat({ model, messages: [{ role: 'user', content }] })).status);
    return seen;
  };
  expect(await statuses('sim-fault-500-then-ok-2', 'a', 4)).toEqual([500, 500, 200, 200]);
  expect(await statuses('sim-fault-500-then-ok-2', 'b', 3)).toEqual([500, 500, 200]);
  expect(await statuses('sim-fault-5xx-burst', 'a', 5)).toEqual([500, 502, 503, 529, 200]);
  expect(await statuses('sim-fault-429-then-ok-1', 'a', 2)).toEqual([429, 200]);
  expect(await statuses('sim-flaky-100', 'a', 3)).toEqual([500, 200, 500]);
});

test('the header chooses a fault for any model, with or without the prefix', async () => {
  expect((await chat({}, { 'x-simulator-fault': '503' })).status).toBe(503);
  expect((await chat({}, { 'x-simulator-fault': 'sim-fault-503-then-ok-1' })).status).toBe(503);
  expect((await chat({}, { 'x-simulator-fault': 'sim-fault-503-then-ok-1' })).status).toBe(200);
  expect((await chat({}, { 'x-simulator-fault': 'nonsense' })).status).toBe(404);
});

test('hang sends nothing, headers-then-hang the headers, stall half a body, and all stay open', async () => {
  simulator.resetStats();
  const giveUp = new AbortController();
  const begin = (name: string) =>
    fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: 'Bearer k' },
      body: JSON.stringify({ model: `sim-fault-${name}`, stream: true, messages: [{ role: 'user', content: 'x' }] }),
      signal: giveUp.signal,
    });
  const hung = begin('hang');
  await vi.waitFor(() => expect(simulator.stats().requests).toEqual({ 'POST /v1/chat/completions': 1 }));
  expect(simulator.stats()).toMatchObject({ statuses: {}, open_requests: 1 });

  const headers = await begin('headers-then-hang');
  expect([headers.status, headers.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8']);
  const stalled = (await begin('stall')).body?.getReader();
  const { value } = (await stalled?.read()) ?? {};
  expect(Buffer.from(value ?? []).toString()).toMatch(/^data: \{.*"role":"assistant"/);
  const next = Promise.race([
    stalled?.read(),
    headers.text(),
    new Promise((resolve) => setTimeout(resolve, 30, 'silence')),
  ]);
  expect(await next).toBe('silence');
  expect(simulator.stats().open_requests).toBe(3);
  giveUp.abort();
  await expect(hung).rejects.toThrow('aborted');
  await vi.waitFor(() => expect(simulator.stats()).toMatchObject({ open_requests: 0, aborted_requests: 3 }));
});

test('slow-drip sends the right answer byte by byte', async () => {
  const { text, pieces } = await raw({ model: 'sim-fault-slow-drip', max_tokens: 1 });
  expect(pieces.length).toBeGreaterThan(200);
  expect(JSON.parse(text.slice(text.indexOf('\r\n\r\n')))).toMatchObject({ choices: [{ finish_reason: 'length' }] });
});

test('a truncated stream ends in order without [DONE] or a finish reason', async () => {
  const reply = await streamed('truncated-stream');
  expect(endsOrderly(reply)).toBe(true);
  expect(dataOf(toBodyObject(reply)).length).toBeGreaterThan(2);
  expect(reply.text).not.toMatch(/DONE|"finish_reason":"/);
  const half = await (await fault('truncated-stream')).text();
  expect(() => JSON.parse(half) as unknown).toThrow(/JSON/);
});

test('no-done lacks only [DONE]', async () => {
  const reply = await streamed('no-done');
  expect(endsOrderly(reply)).toBe(true);
  expect(reply.text).toContain('"finish_reason":"stop"');
  expect(reply.text).not.toContain('DONE');
});

test('hold-open sends [DONE] and stays open', async () => {
  simulator.resetStats();
  const giveUp = new AbortController();
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: 'Bearer k' },
    signal: giveUp.signal,
    body: '{"model":"sim-fault-hold-open","stream":true,"messages":[{"role":"user","content":"x"}]}',
  });
  let text = '';
  for await (const piece of response.body ?? []) {
    text += Buffer.from(piece).toString();
    if (text.endsWith('data: [DONE]\n\n')) break;
  }
  expect(text).toContain('[DONE]');
  expect(simulator.stats().open_requests).toBe(1);
  giveUp.abort();
});

test('cut ends with FIN in the middle, reset with RST', async () => {
  for (const stream of [true, false]) {
    const cut = await raw({ model: 'sim-fault-cut', stream });
    expect(cut.error).toBeUndefined();
    expect(cut.text).toMatch(/^HTTP\/1.1 200[^]*"id"/);
    expect(endsOrderly(cut)).toBe(false);
    expect(cut.text).not.toMatch(/"total_tokens"|DONE/);
    const reset = await raw({ model: 'sim-fault-reset', stream });
    expect(reset.error).toBe('ECONNRESET');
    expect(reset.text).toMatch(/^HTTP\/1.1 200[^]*"id"/);
  }
  expect(await raw({ model: 'sim-fault-reset-early' })).toMatchObject({ text: '', error: 'ECONNRESET' });
});

test('bodies that are no answer', async () => {
  const invalid = await (await fault('invalid-json')).text();
  expect(() => JSON.parse(invalid) as unknown).toThrow(/JSON/);
  const events = dataOf(await (await fault('invalid-json', { stream: true })).text());
  expect(() => events.map((data) => JSON.parse(data) as unknown)).toThrow(/JSON/);
  expect(events.length).toBeGreaterThan(2);
  for (const stream of [true, false]) {
    const page = await fault('html', { stream });
    expect([page.status, page.headers.get('content-type')]).toEqual([200, 'text/html; charset=utf-8']);
  }
  const empty = await fault('empty');
  expect([empty.status, empty.headers.get('content-type'), await empty.text()]).toEqual([200, null, '']);
  expect(await (await fault('null')).json()).toBeNull();
});

test('right answers in the wrong wrapping', async () => {
  const plain = await fault('wrong-content-type');
  expect(plain.headers.get('content-type')).toBe('text/plain');
  expect(await plain.json()).toHaveProperty('choices');
  expect((await fault('wrong-content-type', { stream: true })).headers.get('content-type')).toBe('text/plain');
  const json = await fault('json-to-stream', { stream: true });
  expect(json.headers.get('content-type')).toBe('application/json');
  expect(await json.json()).toHaveProperty('object', 'chat.completion');
  expect(dataOf(await (await fault('stream-to-json')).text()).at(-1)).toBe('[DONE]');
  expect(await (await fault('no-usage')).json()).not.toHaveProperty('usage');
  expect(await (await fault('wrong-model')).json()).toHaveProperty('model', 'sim-other');
});

test('an error in a stream comes first or late, and the SDK raises it', async () => {
  const first = dataOf(toBodyObject(await streamed('error-in-stream')));
  expect(first.map((json) => Object.keys(JSON.parse(json) as Json))).toEqual([['error']]);
  const late = toBodyObject(await streamed('error-in-stream-late'));
  expect(dataOf(late).length).toBeGreaterThan(2);
  expect(dataOf(late).at(-1)).toMatch(/^\{"error":/);
  expect(toBodyObject(await streamed('error-event'))).toMatch(/event: error\ndata: \{"message":/);
  const stream = await openai.chat.completions.create({
    model: 'sim-fault-error-in-stream-late',
    stream: true,
    messages: [{ role: 'user', content: 'x' }],
  });
  const read = async () => {
    for await (const _ of stream);
  };
  await expect(read()).rejects.toMatchObject({ code: 'server_error' });
});

test('a filtered answer is cut and says why', async () => {
  expect(await (await fault('content-filter')).json()).toMatchObject({
    choices: [{ finish_reason: 'content_filter' }],
  });
});

test('a big event is one event', async () => {
  const events = dataOf(await (await fault('big-event-2', { stream: true })).text());
  expect(events.some((json) => json.length > 2 * 1_048_576)).toBe(true);
  expect(events).toHaveLength(4);
});

test('CRLF and comments change the framing and nothing else', async () => {
  const whole = toBodyObject(await streamed('no-usage', { max_tokens: 3 })).replaceAll('sim-fault-no-usage', 'M');
  const crlf = await (await fault('crlf', { stream: true, max_tokens: 3 })).text();
  expect(crlf).not.toMatch(/[^\r]\n/);
  const comments = await (await fault('comments', { stream: true, max_tokens: 3 })).text();
  expect(comments.split(': keep-alive\n\n').length).toBe(dataOf(comments).length + 1);
  const shape = (text: string) =>
    dataOf(text.replaceAll('\r\n', '\n')).map((json) =>
      json.replaceAll(/"(id|model|content|obfuscation)":"[^"]*"|"created":\d+/g, ''),
    );
  expect(shape(crlf)).toEqual(shape(whole));
  expect(shape(comments)).toEqual(shape(whole));
});

test('split-utf8 ends writes inside characters', async () => {
  for (const stream of [true, false]) {
    const { pieces, text } = await raw({ model: 'sim-fault-split-utf8', stream });
    const endsInside = (piece: Buffer) => {
      const data = piece.subarray(0, piece.lastIndexOf('\r\n') === piece.length - 2 ? -2 : undefined);
      return (data.at(-1) ?? 0) >= 0xc0;
    };
    expect(pieces.filter(endsInside).length).toBeGreaterThan(10);
    expect(text).not.toContain('HTTP/1.1 500');
  }
  const answer = await openai.chat.completions.create({
    model: 'sim-fault-split-utf8',
    messages: [{ role: 'user', content: 'x' }],
  });
  expect(answer.choices[0]?.message.content).toContain('東京 und Київ 🙂');
});

test('a redirect that is followed shows in the statistics', async () => {
  simulator.resetStats();
  const response = await fault('redirect');
  expect([response.status, response.headers.get('location')]).toEqual([302, '/redirected']);
  expect(simulator.stats().requests).not.toHaveProperty('/redirected');
  await fetch(`${url}/redirected`);
  expect(simulator.stats().requests).toHaveProperty('/redirected', 1);
});

test('echo-key repeats the key in its message', async () => {
  const response = await chat({ model: 'sim-fault-echo-key' }, { authorization: 'Bearer sk-canary-1234567890' });
  expect(response.status).toBe(401);
  expect(await getFailureCode(response)).toMatchObject({ message: expect.stringContaining('sk-canary-1234567890') });
});
