import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { UpstreamReply } from '#test/upstream.ts';
import {
  canary,
  postJson,
  startScriptedPlatform,
  storeVirtualKey,
  type ScriptedPlatform,
} from './scripted-provider.ts';

// Clients of Anthropic's API reach Anthropic through the same call path as chat.

let scripted: ScriptedPlatform;
let client: Anthropic;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  const { platform, upstream } = scripted;
  await storeVirtualKey(platform, 'claude', upstream.url.href, 'anthropic');
  const simulated = { name: 'sim', slug: 'sim', provider: 'anthropic', key: 'sk-ant-0123456789' };
  const origin = new URL(platform.simulatorUrl).origin;
  const response = await postJson(platform, '/virtual-keys', { ...simulated, custom_host: `${origin}/v1` });
  if (!response.ok) throw new Error(await response.text());
  client = new Anthropic({ apiKey: platform.adminKey, baseURL: new URL(platform.baseUrl).origin, maxRetries: 0 });
});
afterAll(() => scripted.stop());

const question = { max_tokens: 50, messages: [{ role: 'user' as const, content: 'Why is the sky blue?' }] };

const send = async (body: string, headers: Record<string, string> = {}, query = ''): Promise<Response> =>
  await postJson(scripted.platform, `/messages${query}`, body, headers);

const json = { 'content-type': 'application/json' };

async function streamed(reply: UpstreamReply, pieces: readonly string[]): Promise<void> {
  reply.head(200, { 'content-type': 'text/event-stream' });
  for (const piece of pieces) await reply.write(piece);
  reply.end();
}

type LogList = { data: Record<string, unknown>[] };
async function rowOf(traceId: string): Promise<Record<string, unknown> | undefined> {
  const { baseUrl, adminKey } = scripted.platform;
  const list = async (): Promise<LogList> => {
    const headers = { authorization: `Bearer ${adminKey}` };
    return (await (await fetch(`${baseUrl}/logs?trace_id=${traceId}`, { headers })).json()) as LogList;
  };
  return (await eventually(list, ({ data }) => data.length > 0)).data[0];
}

describe('the SDK of Anthropic', () => {
  test('gets a message, which is recorded with its usage', async () => {
    const headers = { 'x-gateway-trace-id': 'sdk-message' };
    const message = await client.messages.create({ model: '@sim/sim-small', ...question }, { headers });
    expect(message).toMatchObject({ type: 'message', role: 'assistant', content: [{ type: 'text' }] });
    expect(await rowOf('sdk-message')).toMatchObject({
      operation: 'messages',
      provider: 'anthropic',
      model: 'sim-small',
      status: 200,
      finish_reason: message.stop_reason,
      usage: { input_tokens: message.usage.input_tokens, output_tokens: message.usage.output_tokens },
    });
  });

  test('assembles the same message from a stream', async () => {
    const headers = { 'x-gateway-trace-id': 'sdk-stream' };
    const request = { model: '@sim/sim-small', ...question };
    const [whole, streamed] = await Promise.all([
      client.messages.create(request),
      client.messages.stream(request, { headers }).finalMessage(),
    ]);
    expect(streamed.content).toMatchObject(whole.content);
    expect(streamed.stop_reason).toBe(whole.stop_reason);
    expect(await rowOf('sdk-stream')).toMatchObject({
      stream: true,
      status: 200,
      finish_reason: whole.stop_reason,
      usage: { input_tokens: whole.usage.input_tokens, output_tokens: whole.usage.output_tokens },
    });
  });

  test('gets the errors of the gateway as its own', async () => {
    const unknown = client.messages.create({ model: '@missing/claude', ...question });
    await expect(unknown).rejects.toBeInstanceOf(Anthropic.APIError);
    const wrong = new Anthropic({ apiKey: 'sk-wrong', baseURL: client.baseURL, maxRetries: 0 });
    const refused = wrong.messages.create({ model: '@sim/sim-small', ...question });
    await expect(refused).rejects.toMatchObject({
      status: 401,
      error: { type: 'error', error: { type: 'authentication_error', message: expect.stringContaining('key') } },
    });
  });
});

describe('Anthropic itself', () => {
  const request =
    '{ "model": "@claude/claude-x", "max_tokens": 9, "system": [{"type":"text","text":"first"},  {"type":"text","text":"second"}],' +
    ' "context_management": {"edits": [ ]}, "messages": [{"role":"user","content":[{"type":"thinking","thinking":"…","signature":"c2ln=="}]}]}';

  test('gets the client’s bytes with its own model, its betas, and the credential of the virtual key', async () => {
    const seen = scripted.upstream.requests.length;
    const answer =
      '{ "id": "msg_1", "type":"message", "role":"assistant", "model":"claude-x", "content":[ {"type":"text","text":"Hi"}], "stop_reason":"end_turn", "new": [1.0], "usage":{"input_tokens":3,"cache_read_input_tokens":4,"cache_creation_input_tokens":5,"output_tokens":2}}';
    scripted.upstream.script((reply) => reply.respond(200, answer, { ...json, 'request-id': 'req_theirs' }));
    const betas = { 'anthropic-beta': 'context-management-2025-06-27,fine-2026', 'anthropic-version': '2023-06-01' };
    const headers = { ...betas, 'x-gateway-trace-id': 'native' };
    const response = await send(request, headers, '?beta=true');
    expect(await response.text()).toBe(answer);
    const { body, headers: sent } = scripted.upstream.requests[seen] ?? {};
    expect(body?.toString()).toBe(request.replace('"@claude/claude-x"', '"claude-x"'));
    expect(sent).toMatchObject({ ...betas, 'x-api-key': canary });
    expect(await rowOf('native')).toMatchObject({
      usage: { input_tokens: 12, cached_tokens: 4, output_tokens: 2 },
      finish_reason: 'end_turn',
    });
  });

  test('answers errors in its own words and with its own status', async () => {
    const error =
      '{"type": "error", "error": {"type": "invalid_request_error", "message": "messages.1.content.0: Invalid `signature`"}, "request_id": "req_1"}';
    scripted.upstream.script((reply) => reply.respond(400, error, json));
    const response = await send(request);
    expect([response.status, await response.text()]).toEqual([400, error]);
  });

  test('is asked again, as the config says, when it is overloaded', async () => {
    const overloaded = '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}';
    const fine =
      '{"id":"msg_2","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":"end_turn"}';
    scripted.upstream.script([
      (reply) => reply.respond(529, overloaded, json),
      (reply) => reply.respond(200, fine, json),
    ]);
    const config = JSON.stringify({ retry: { attempts: 2, on_status_codes: [529] } });
    const response = await send(request, { 'x-gateway-config': config });
    expect([response.status, await response.text()]).toEqual([200, fine]);
  });

  const events = [
    '{"type":"message_start","message":{"id":"msg_3","model":"claude-x","content":[],"usage":{"input_tokens":7,"output_tokens":1}}}',
    '{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}',
    '{"type": "ping"}',
    '{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}',
    '{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB"}}',
    '{"type":"content_block_stop","index":0}',
    '{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}',
    '{"type":"message_stop"}',
  ];
  const framed = events
    .map((data) => `event: ${(JSON.parse(data) as { type: string }).type}\ndata: ${data}\n\n`)
    .join('');

  test('streams events that arrive as it sent them, wherever its bytes are cut', async () => {
    const streaming = request.replace('{', '{"stream":true,');
    for (const size of [1, 7, 64, 10_000]) {
      const pieces = framed.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? [];
      scripted.upstream.script((reply) => streamed(reply, pieces));
      const response = await send(streaming, { 'x-gateway-trace-id': `cut-${size}` });
      expect(await response.text()).toBe(framed);
    }
    expect(await rowOf('cut-7')).toMatchObject({
      usage: { input_tokens: 7, output_tokens: 15 },
      finish_reason: 'end_turn',
    });
  });

  test('breaks a stream off, and the client gets an error event and no end', async () => {
    const begun = framed.slice(0, framed.indexOf('event: message_delta'));
    scripted.upstream.script((reply) => streamed(reply, [begun]));
    const text = await (await send(request.replace('{', '{"stream":true,'))).text();
    expect(text.startsWith(begun)).toBe(true);
    expect(text.slice(begun.length)).toMatch(/^event: error\ndata: \{"type":"error","error":\{"type":"api_error",/);
    expect(text).not.toContain('message_stop');
  });
});
