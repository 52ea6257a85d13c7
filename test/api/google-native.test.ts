import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { UpstreamReply } from '#test/upstream.ts';
import { canary, startScriptedPlatform, storeVirtualKey, type ScriptedPlatform } from './scripted-provider.ts';

// Gemini gets what its clients have written, and its answers reach them as it wrote them.

let scripted: ScriptedPlatform;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  await storeVirtualKey(scripted.platform, 'google', `${scripted.upstream.url.href}v1beta`, 'gemini');
});
afterAll(() => scripted.stop());

const json = { 'content-type': 'application/json' };
const request =
  '{ "contents": [ {"role":"user", "parts":[ {"text":"Hi","thoughtSignature":"CsQB+/=="} ], "unknown": [1.0]} ],  "alsoUnknown": { } }';

const send = (method: string, headers: Record<string, string> = {}, body = request): Promise<Response> => {
  const { baseUrl, adminKey } = scripted.platform;
  const url = `${new URL(baseUrl).origin}/v1beta/models/@google/gemini-x:${method}`;
  return fetch(url, { method: 'POST', headers: { 'x-goog-api-key': adminKey, ...json, ...headers }, body });
};

async function streamed(reply: UpstreamReply, pieces: readonly string[]): Promise<void> {
  reply.head(200, { 'content-type': 'text/event-stream' });
  for (const piece of pieces) await reply.write(piece);
  reply.end();
}

async function rowOf(traceId: string): Promise<Record<string, unknown> | undefined> {
  const { baseUrl, adminKey } = scripted.platform;
  const list = async () => {
    const response = await fetch(`${baseUrl}/logs?trace_id=${traceId}`, {
      headers: { authorization: `Bearer ${adminKey}` },
    });
    return (await response.json()) as { data: Record<string, unknown>[] };
  };
  return (await eventually(list, ({ data }) => data.length > 0)).data[0];
}

describe('a whole answer', () => {
  const answer =
    '{ "candidates": [ {"content":{"parts":[{"text":"Hi","thoughtSignature":"abc="}],"role":"model"}, "finishReason":"STOP","new":[1.0]} ],' +
    ' "usageMetadata":{"promptTokenCount":7,"cachedContentTokenCount":4,"candidatesTokenCount":2,"thoughtsTokenCount":3}, "modelVersion":"gemini-x-001"}';

  test('and its request pass byte for byte, with the credential of the virtual key, and are recorded', async () => {
    const seen = scripted.upstream.requests.length;
    scripted.upstream.script((reply) => reply.respond(200, answer, json));
    const response = await send('generateContent', { 'x-gateway-trace-id': 'google-native' });
    expect(await response.text()).toBe(answer);
    const sent = scripted.upstream.requests[seen];
    expect(sent?.body?.toString()).toBe(request);
    expect(sent?.headers).toMatchObject({ 'x-goog-api-key': canary });
    expect(await rowOf('google-native')).toMatchObject({
      operation: 'generate_content',
      model: 'gemini-x',
      finish_reason: 'STOP',
      usage: { input_tokens: 7, cached_tokens: 4, output_tokens: 5, reasoning_tokens: 3 },
    });
  });

  test('without candidates passes if the prompt was blocked', async () => {
    const blocked = '{"promptFeedback": {"blockReason":"SAFETY"}, "usageMetadata":{"promptTokenCount":7}}';
    scripted.upstream.script((reply) => reply.respond(200, blocked, json));
    expect(await (await send('generateContent')).text()).toBe(blocked);
  });

  test('that is an error passes with its words and its status', async () => {
    const error =
      '{"error": {"code": 400, "message": "Unable to submit request: thought signature is missing", "status": "INVALID_ARGUMENT", "details": [ ]}}';
    scripted.upstream.script((reply) => reply.respond(400, error, json));
    const response = await send('generateContent');
    expect([response.status, await response.text()]).toEqual([400, error]);
  });

  test('is taken from the cache the second time, with the model of its path', async () => {
    const config = { 'x-gateway-config': JSON.stringify({ cache: { mode: 'simple' } }) };
    const body = '{"contents":[{"parts":[{"text":"cached"}]}]}';
    scripted.upstream.script((reply) => reply.respond(200, answer, json));
    await (await send('generateContent', config, body)).text();
    const again = await send('generateContent', config, body);
    expect(again.headers.get('x-gateway-cache-status')).toBe('HIT');
    expect(await again.text()).toBe(answer);
  });
});

describe('a stream', () => {
  const payloads = [
    '{"candidates": [{"content": {"parts": [{"text": "ä","thought": true}],"role": "model"},"index": 0}],"usageMetadata": {"promptTokenCount": 7}}',
    '{"candidates": [{"content": {"parts": [{"functionCall": {"name": "f","args": {"error": 1}},"thoughtSignature": "abc="}],"role": "model"}}], "new": [ ]}',
    '{"candidates": [{"content": {"parts": [{"text": ""}],"role": "model"},"finishReason": "STOP"}],"usageMetadata": {"promptTokenCount": 7,"candidatesTokenCount": 15}}',
  ];
  const framed = payloads.map((payload) => `data: ${payload}\n\n`).join('');

  test('arrives as it was sent, wherever its bytes are cut', async () => {
    for (const size of [1, 7, 64, 10_000]) {
      const pieces = framed.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? [];
      scripted.upstream.script((reply) => streamed(reply, pieces));
      const response = await send('streamGenerateContent?alt=sse', { 'x-gateway-trace-id': `google-cut-${size}` });
      expect(await response.text()).toBe(framed);
    }
    expect(await rowOf('google-cut-7')).toMatchObject({
      stream: true,
      finish_reason: 'STOP',
      usage: { input_tokens: 7, output_tokens: 15 },
    });
  });

  test('is a list of the same texts for a client that did not ask for events', async () => {
    scripted.upstream.script((reply) => streamed(reply, [framed]));
    expect(await (await send('streamGenerateContent')).text()).toBe(`[${payloads.join(',\r\n')}]`);
  });

  test('that is cut off anywhere before its end never looks complete', async () => {
    const end = framed.lastIndexOf('data: ');
    for (let cut = 0; cut <= end; cut += 13) {
      scripted.upstream.script((reply) => streamed(reply, [framed.slice(0, cut)]));
      const text = await (await send('streamGenerateContent?alt=sse')).text();
      expect(text).toContain('"error":{"code":');
      expect(text).not.toContain('STOP');
    }
  });

  test('that breaks off with an error ends with it', async () => {
    const error = '{"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}';
    scripted.upstream.script((reply) => streamed(reply, [`data: ${payloads[0]}\n\n`, `data: ${error}\n\n`]));
    const text = await (await send('streamGenerateContent?alt=sse')).text();
    expect(text.startsWith(`data: ${payloads[0]}\n\n`)).toBe(true);
    expect(text).toContain('The model is overloaded.');
    expect(text).not.toContain('STOP');
  });
});

test('Tokens are counted by Google itself', async () => {
  const seen = scripted.upstream.requests.length;
  scripted.upstream.script((reply) => reply.respond(200, '{ "totalTokens": 5, "new": 1 }', json));
  const response = await send('countTokens', { 'x-gateway-config': JSON.stringify({ override_params: { top_p: 1 } }) });
  expect(await response.text()).toBe('{ "totalTokens": 5, "new": 1 }');
  expect(scripted.upstream.requests[seen]?.body?.toString()).toBe(request);
});
