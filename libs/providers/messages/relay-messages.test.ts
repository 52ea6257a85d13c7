import { EventStreamCodec } from '@smithy/eventstream-codec';
import { expect, test } from 'vitest';
import { translationCall, upstreamAt } from '#test/translation-call.ts';
import { anthropic } from '../anthropic/index.ts';
import { bedrock } from '../bedrock/index.ts';
import { findTranslation } from '../dialects.ts';
import type { Provider, StreamEvent } from '../provider.ts';
import { vertex } from '../vertex/index.ts';
import { typeOfEvent } from './relay-messages.ts';

const body = {
  model: 'anthropic/claude-x',
  max_tokens: 5,
  stream: true,
  thinking: { type: 'adaptive' },
  messages: [{ role: 'user', content: 'hi' }],
};
const headers = { 'anthropic-beta': 'one-2025, two-2026' };

function encode(provider: Provider, model: string, host: string, settings: Record<string, string> = {}) {
  const call = translationCall({ ...body, model }, { operation: 'messages', stream: true, headers });
  const sent = provider.operations.messages?.encode(call, upstreamAt(host, { settings }));
  return { ...sent, body: Buffer.from(sent?.body as Uint8Array).toString() };
}

test('Vertex AI gets the model in its path, and a version and everything else in the body', () => {
  const settings = { vertex_region: 'europe-west4', vertex_project_id: 'p' };
  const sent = encode(vertex, 'anthropic/claude-x', 'https://europe-west4-aiplatform.googleapis.com/v1', settings);
  expect(sent.path).toMatch(/\/publishers\/anthropic\/models\/claude-x:streamRawPredict$/);
  expect(sent.headers).toContain('one-2025, two-2026');
  const { model: _model, ...rest } = body;
  expect(JSON.parse(sent.body)).toEqual({ ...rest, anthropic_version: 'vertex-2023-10-16' });
});

test('Vertex AI and Bedrock have the API for Claude only', () => {
  const isNative = (provider: Provider, model: string): boolean =>
    findTranslation(provider, 'messages', model) === provider.operations.messages;
  for (const model of ['claude-sonnet-4-5@20250929', 'anthropic/claude-x']) expect(isNative(vertex, model)).toBe(true);
  for (const model of ['google/gemini-x', 'meta/llama-4']) expect(isNative(vertex, model)).toBe(false);
  const profile = 'arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/ab12';
  for (const model of ['eu.anthropic.claude-x-v1:0', profile]) expect(isNative(bedrock, model)).toBe(true);
  for (const model of ['amazon.nova-pro-v1:0', 'openai.gpt-oss-120b-1:0']) expect(isNative(bedrock, model)).toBe(false);
});

test('reasoning of other providers is taken out of the request, and nothing else', () => {
  const mine = { type: 'thinking', thinking: 'm', signature: 'EqQB' };
  const theirs = { type: 'thinking', thinking: 't', signature: 'sluice.gemini.c2ln' };
  const hidden = { type: 'redacted_thinking', data: 'sluice.bedrock.ZGF0YQ' };
  const said = { type: 'text', text: 'It begins with "sluice."' };
  const question = { role: 'user', content: [said] };
  const messages = [
    question,
    { role: 'assistant', content: [mine, theirs, hidden, said] },
    question,
    { role: 'assistant', content: [theirs] },
    question,
  ];
  const call = translationCall({ ...body, messages }, { operation: 'messages' });
  const sent = anthropic.operations.messages?.encode(call, upstreamAt('https://api.anthropic.com/v1'));
  expect(sent?.dropped).toEqual(['reasoning']);
  expect(JSON.parse(Buffer.from(sent?.body as Uint8Array).toString())).toEqual({
    ...body,
    messages: [question, { role: 'assistant', content: [mine, said] }, question, question],
  });
});

test('a request that only mentions the mark passes as the same bytes', () => {
  const call = translationCall(
    { ...body, messages: [{ role: 'user', content: 'sluice.gemini.c2ln' }] },
    { operation: 'messages' },
  );
  const sent = anthropic.operations.messages?.encode(call, upstreamAt('https://api.anthropic.com/v1'));
  expect(sent?.body).toBe(call.body);
  expect(sent?.dropped).toBeUndefined();
});

test('Bedrock gets model and stream in its path, and betas in the body', () => {
  const sent = encode(bedrock, 'anthropic.claude-x-v1:0', 'https://bedrock-runtime.eu-west-1.amazonaws.com');
  expect(sent.path).toBe('/model/anthropic.claude-x-v1%3A0/invoke-with-response-stream');
  const { model: _model, stream: _stream, ...rest } = body;
  expect(JSON.parse(sent.body)).toEqual({
    ...rest,
    anthropic_version: 'bedrock-2023-05-31',
    anthropic_beta: ['one-2025', 'two-2026'],
  });
});

const codec = new EventStreamCodec(
  (bytes) => Buffer.from(bytes as Uint8Array).toString('utf8'),
  (text) => Buffer.from(text, 'utf8'),
);
const frame = (names: Record<string, string>, payload: object): Buffer =>
  Buffer.from(
    codec.encode({
      headers: Object.fromEntries(Object.entries(names).map(([name, value]) => [name, { type: 'string', value }])),
      body: Buffer.from(JSON.stringify(payload)),
    }),
  );
const chunk = (text: string): Buffer =>
  frame({ ':event-type': 'chunk', ':message-type': 'event' }, { bytes: Buffer.from(text).toString('base64') });

/** What a stream of these bytes is for the client: payloads and the error that ends it. */
function read(bytes: Buffer): { payloads: string[]; isDone: boolean; error: unknown } {
  const translation = bedrock.operations.messages;
  const decoder = translation?.openStream?.(translationCall(body));
  const found = { payloads: [] as string[], isDone: false, error: undefined as unknown };
  const onEvent = (event: StreamEvent): void => {
    const { payloads = [], done = false, error } = decoder?.push(event) ?? {};
    found.payloads.push(...payloads);
    found.isDone ||= done;
    found.error ??= error;
  };
  const framing = translation?.openFraming?.(onEvent, 10_000);
  for (const byte of bytes) framing?.push(Buffer.from([byte]));
  return found;
}

test('the events inside of those of Bedrock pass byte for byte', () => {
  const events = ['{"type":"message_start", "message":{"id":"msg_1"}}', '{ "type":"ping" }', '{"type":"message_stop"}'];
  expect(read(Buffer.concat(events.map(chunk)))).toEqual({ payloads: events, isDone: true, error: undefined });
});

test('an exception of Bedrock is an error with its own status', () => {
  const names = { ':exception-type': 'throttlingException', ':message-type': 'exception' };
  const { error } = read(Buffer.concat([chunk('{"type":"message_start"}'), frame(names, { message: 'slow down' })]));
  expect(error).toMatchObject({ status: 429, error: { message: 'slow down' } });
});

test.each([
  ['{"type":"message_stop"}', 'message_stop'],
  ['{ "index": 1, "type" : "content_block_stop" }', 'content_block_stop'],
  ['[]', ''],
  [String.raw`{"type":"ping\n\nevent: error"}`, ''],
  ['{', ''],
])('the type of %s', (data, type) => {
  expect(typeOfEvent(data)).toBe(type);
});

test('tokens are counted at Anthropic and Vertex AI, with the model in the body', () => {
  const call = translationCall({ ...body, stream: undefined }, { operation: 'count_tokens', headers });
  const direct = anthropic.operations.count_tokens?.encode(call, upstreamAt('https://api.anthropic.com/v1'));
  expect(direct).toMatchObject({ path: '/v1/messages/count_tokens', body: call.body });
  const settings = { vertex_region: 'global', vertex_project_id: 'p' };
  const hosted = vertex.operations.count_tokens?.encode(
    call,
    upstreamAt('https://aiplatform.googleapis.com/v1', { settings }),
  );
  expect(hosted?.path).toMatch(/\/publishers\/anthropic\/models\/count-tokens:rawPredict$/);
  expect(JSON.parse(Buffer.from(hosted?.body as Uint8Array).toString())).toMatchObject({
    model: 'claude-x',
    anthropic_version: 'vertex-2023-10-16',
  });
});
