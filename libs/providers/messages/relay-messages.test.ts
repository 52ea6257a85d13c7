import { EventStreamCodec } from '@smithy/eventstream-codec';
import { expect, test } from 'vitest';
import { translationCall, upstreamAt } from '#test/translation-call.ts';
import { bedrock } from '../bedrock/index.ts';
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

test('Vertex AI has no Messages API for the models of others', () => {
  expect(() => encode(vertex, 'google/gemini-x', 'https://example.com/v1', { vertex_project_id: 'p' })).toThrow(
    /only Claude has Anthropic's Messages API/,
  );
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
