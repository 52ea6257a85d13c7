import { Sha256 } from '@aws-crypto/sha256-js';
import { EventStreamCodec } from '@smithy/eventstream-codec';
import { SignatureV4 } from '@smithy/signature-v4';
import { expect, test } from 'vitest';
import { startTestSimulator, type Json } from '#test/test-simulator.ts';
import { membersOf, parsePayload } from '#test/fixtures/provider-payloads.ts';

type Block = {
  text?: string;
  toolUse?: { toolUseId: string; name: string; input: Json };
  reasoningContent?: { reasoningText: { text: string; signature: string } };
};
type Answer = { output: { message: { content: Block[] } }; stopReason: string; usage: Record<string, number> };
type Event = { type: string; name: string; data: Json };

const { url, post } = await startTestSimulator();
const user = (...content: unknown[]) => ({ role: 'user', content });
const text = (value: string) => ({ text: value });
const ask = (fields: Json = {}, model = 'anthropic.claude-sonnet-4-5-20250929-v1:0', operation = 'converse') =>
  post(`/model/${encodeURIComponent(model)}/${operation}`, { messages: [user(text('Hello'))], ...fields });
const complete = async (fields: Json = {}, model?: string) =>
  (await (await ask(fields, model)).json()) as Answer & Json;
const tool = (name: string, properties: Json = {}) => ({
  toolSpec: { name, inputSchema: { json: { type: 'object', properties, required: Object.keys(properties) } } },
});
const toolConfig = { tools: [tool('get_weather', { city: { type: 'string' } }), tool('get_time')] };
const thinking = {
  additionalModelRequestFields: { thinking: { type: 'enabled', budget_tokens: 1024 } },
  inferenceConfig: { maxTokens: 2000 },
};

const codec = new EventStreamCodec(
  (bytes) => (typeof bytes === 'string' ? bytes : Buffer.from(bytes).toString()),
  (value) => Buffer.from(value),
);

/** Reads binary frames; throws if a checksum is wrong. */
function readFrames(bytes: Buffer): Event[] {
  const events: Event[] = [];
  for (let at = 0; at < bytes.length; at += bytes.readUInt32BE(at)) {
    const { headers, body } = codec.decode(bytes.subarray(at, at + bytes.readUInt32BE(at)));
    const header = (name: string) => String(headers[name]?.value ?? '');
    const payload = Buffer.from(body).toString();
    const { p: _, ...data } = (payload === '' ? {} : JSON.parse(payload)) as Json;
    events.push({ type: header(':message-type'), name: header(':event-type') || header(':exception-type'), data });
  }
  return events;
}

async function stream(fields: Json = {}, model?: string): Promise<Event[]> {
  const response = await ask(fields, model, 'converse-stream');
  expect(response.headers.get('content-type')).toBe('application/vnd.amazon.eventstream');
  return readFrames(Buffer.from(await response.arrayBuffer()));
}

test('finish reasons of a refusal and a filter, and tokens read from a cache', async () => {
  expect((await complete({}, 'm+refuse')).stopReason).toBe('guardrail_intervened');
  expect((await complete({}, 'sim-fault-content-filter')).stopReason).toBe('content_filtered');
  const { usage } = await complete({}, 'm+cached');
  const { inputTokens = 0, cacheReadInputTokens = 0, cacheWriteInputTokens = 0, outputTokens = 0, totalTokens } = usage;
  expect(cacheReadInputTokens).toBeGreaterThan(0);
  expect(inputTokens + cacheReadInputTokens + cacheWriteInputTokens + outputTokens).toBe(totalTokens);
});

test.for<[string, Json]>([
  ['#: extraneous key [foo] is not permitted', { foo: 1 }],
  ['#/inferenceConfig: extraneous key [topK]', { inferenceConfig: { topK: 1 } }],
  ['must alternate between user and assistant', { messages: [user(text('a')), user(text('b'))] }],
  ['must start with a user message', { messages: [{ role: 'assistant', content: [text('x')] }] }],
  ["Value at 'messages.0.role'", { messages: [{ role: 'system', content: [text('x')] }] }],
  ['is blank', { messages: [user(text(' '))] }],
  ['exactly one member', { messages: [user({ text: 'x', image: { format: 'png', source: { bytes: 'AA==' } } })] }],
  [
    'The toolConfig field must be defined',
    {
      messages: [
        user(text('x')),
        { role: 'assistant', content: [{ toolUse: { toolUseId: 'a', name: 'n', input: {} } }] },
        user({ toolResult: { toolUseId: 'a', content: [] } }),
      ],
    },
  ],
  ['`temperature` may only be set to 1', { ...thinking, inferenceConfig: { maxTokens: 2000, temperature: 0.5 } }],
])('a request is refused: %s', async ([message, fields]) => {
  const response = await ask(fields);
  expect([response.status, response.headers.get('x-amzn-errortype')?.split(':')[0]]).toEqual([
    400,
    'ValidationException',
  ]);
  expect(await response.json()).toEqual({ message: expect.stringContaining(message) });
});

test('faults come as exceptions, before the stream or in it, and damage is seen by the checksum', async () => {
  const limited = await ask({}, 'sim-fault-429');
  expect([limited.status, limited.headers.get('x-amzn-errortype')?.split(':')[0]]).toEqual([
    429,
    'ThrottlingException',
  ]);
  expect((await stream({}, 'sim-fault-error-in-stream-429')).map(({ type, name }) => [type, name])).toEqual([
    ['exception', 'throttlingException'],
  ]);
  expect((await stream({}, 'sim-fault-error-in-stream-late-424')).at(-1)).toMatchObject({
    type: 'exception',
    name: 'modelStreamErrorException',
  });
  expect((await stream({}, 'sim-fault-no-done')).at(-1)?.name).toBe('messageStop');
  await expect(stream({}, 'sim-fault-damaged-frame')).rejects.toThrow(/checksum/);
  await expect(stream({}, 'sim-fault-invalid-json')).rejects.toThrow(SyntaxError);
  expect((await stream({}, 'sim-fault-big-event-1')).some(({ data }) => JSON.stringify(data).length > 1_048_576)).toBe(
    true,
  );
});

const body = JSON.stringify({ messages: [{ role: 'user', content: [{ text: 'Hi' }] }] });

async function signed(change: { secret?: string; path?: string; body?: string; service?: string; at?: Date } = {}) {
  const path = change.path ?? '/model/anthropic.claude%3A0/converse';
  const signer = new SignatureV4({
    credentials: { accessKeyId: 'AKIASIMULATOR', secretAccessKey: change.secret ?? 'simulator' },
    region: 'eu-central-1',
    service: change.service ?? 'bedrock',
    sha256: Sha256,
  });
  const { host } = new URL(url);
  const headers = { host, 'content-type': 'application/json' };
  const request = { method: 'POST', protocol: 'http:', hostname: host, path, query: {}, headers, body };
  const { headers: signedHeaders } = await signer.sign(
    request,
    change.at === undefined ? {} : { signingDate: change.at },
  );
  const { host: _, ...sent } = signedHeaders;
  return fetch(url + path, { method: 'POST', headers: sent, body: change.body ?? body });
}

test('a signature of the simulator’s own key is recomputed, of another key only looked at', async () => {
  expect((await signed()).status).toBe(200);
  for (const change of [
    { secret: 'wrong' },
    { body: `${body} ` },
    { service: 's3' },
    { at: new Date(Date.now() - 600_000) },
  ]) {
    const response = await signed(change);
    expect([response.status, response.headers.get('x-amzn-errortype')?.split(':')[0]]).toEqual([
      403,
      'InvalidSignatureException',
    ]);
  }
  const other =
    'AWS4-HMAC-SHA256 Credential=AKIAOTHER/20260101/us-east-1/bedrock/aws4_request, SignedHeaders=host;x-amz-date, Signature=';
  const foreign = (signature: string) => post('/model/m/converse', body, { authorization: other + signature });
  expect((await foreign('0'.repeat(64))).status).toBe(200);
  const missing = await foreign('');
  expect([missing.status, missing.headers.get('x-amzn-errortype')?.split(':')[0]]).toEqual([
    403,
    'MissingAuthenticationTokenException',
  ]);
  expect((await post('/model/m/converse', body, { authorization: 'Bearer invalid' })).status).toBe(403);
});

test('answers have the members of real ones', async () => {
  // Only one of the payloads lists the blocks that start; the other describes the model's additions to its stop.
  const loose = (value: unknown) =>
    membersOf(value).filter((member) => !/serverToolUsage|cache|additionalModel|metrics/.test(member));
  const compare = async (name: string, fields: Json) => {
    expect(loose(await complete(fields))).toEqual(expect.arrayContaining(loose(parsePayload(`${name}.json`))));
    const events = (await stream(fields)).map(({ name, data }) => ({ [name]: data }));
    expect(loose(events)).toEqual(expect.arrayContaining(loose(parsePayload(`${name}.chunks.txt`))));
  };
  await compare('amazon-bedrock-text', {});
  await compare('amazon-bedrock-reasoning', thinking);
  expect(membersOf(await complete())).toEqual(membersOf(parsePayload('amazon-bedrock-text.json')));
  expect(membersOf(await complete(thinking))).toEqual(membersOf(parsePayload('amazon-bedrock-reasoning.json')));
  const plain = (await stream()).map(({ name, data }) => ({ [name]: data }));
  expect(membersOf(plain)).toEqual(membersOf(parsePayload('amazon-bedrock-text.chunks.txt')));
  const toolCall = (await stream({ toolConfig, messages: [user(text('get_weather'))] })).map(({ name, data }) => ({
    [name]: data,
  }));
  expect(loose(toolCall)).toEqual(expect.arrayContaining(loose(parsePayload('amazon-bedrock-tool-call.1.chunks.txt'))));
});
