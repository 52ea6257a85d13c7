import { generateKeyPairSync } from 'node:crypto';
import { afterAll, describe, expect, test } from 'vitest';
import { startTestSimulator } from '#test/test-simulator.ts';
import type { Answer, JsonAnswer, Target } from '#libs/calls/call.ts';
import { createEgress } from '#libs/calls/upstream/egress/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createForwarder } from '#test/forwarder.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Operation } from '#libs/providers/provider.ts';
import { readStream } from '#test/forwarding-rig.ts';
import type { Json } from './conformance-case.ts';
import { readChunks, readCompletion, type Chunk, type Completion, type Read } from './read-answer.ts';

// The simulator refuses what Google refuses: unknown members, turns out of order, signatures that are missing or stand at
// another call, tokens it did not make. It shares no idea with the adapters.

const { url } = await startTestSimulator();
const egress = createEgress({ allow: parseEgressAllow(new URL(url).host), connectTimeoutMs: 1_000 });
const forwarder = createForwarder({ egress, clock: systemClock, random: () => 0 });
afterAll(async () => {
  forwarder.stop();
  await egress.stop();
});

const privateKey = generateKeyPairSync('rsa', { modulusLength: 2_048 }).privateKey.export({
  type: 'pkcs8',
  format: 'pem',
});
const accountOf = (tokenPath: string): Secret =>
  new Secret(
    JSON.stringify({
      project_id: 'project-1',
      private_key_id: 'key-1',
      private_key: privateKey,
      client_email: 'sluice@project-1.iam.gserviceaccount.com',
      token_uri: new URL(tokenPath, url).href,
    }),
  );
const at = (provider: string, folder: string, more: Partial<Target> = {}): Target => ({
  provider,
  baseUrl: new URL(folder, url),
  apiKey: new Secret('AIza-test-0123456789'),
  settings: {},
  secrets: {},
  secretOrigin: new URL(url).origin,
  label: provider,
  ...more,
});
const vertex = at('vertex', '/v1', {
  apiKey: null,
  settings: { vertex_region: 'us-central1' },
  secrets: { vertex_service_account_json: accountOf('/token') },
});

type Options = { stream?: boolean; strict?: boolean; operation?: Operation };
const forward = (target: Target, body: Json, options: Options = {}): Promise<Answer> => {
  const { stream = false, strict = true, operation = 'chat' } = options;
  const model = operation === 'models' ? null : String(body['model']);
  const streaming = stream ? { stream, stream_options: { include_usage: true } } : {};
  return forwarder.forward(
    {
      operation,
      body: operation === 'models' ? Buffer.alloc(0) : Buffer.from(JSON.stringify({ ...body, ...streaming })),
      model,
      stream,
      includeUsage: stream,
      strict,
      signal: new AbortController().signal,
    },
    target,
  );
};
const jsonOf = async (answer: Promise<Answer>): Promise<JsonAnswer> => {
  const found = await answer;
  if (found.kind !== 'json') throw new Error('a stream instead of JSON');
  return found;
};
const read = async (target: Target, body: Json, options: Options = {}): Promise<Read> => {
  const answer = await forward(target, body, options);
  if (answer.kind === 'json') {
    expect([answer.status, answer.body.toString()]).toEqual([200, expect.anything()]);
    return readCompletion(JSON.parse(answer.body.toString()) as Completion);
  }
  if (answer.kind !== 'stream') throw new Error('no stream');
  const { payloads, error } = await readStream(answer);
  expect(error).toBeNull();
  return readChunks(payloads.map((payload) => JSON.parse(payload) as Chunk));
};

const question = { role: 'user', content: 'What are weather and time in Köln?' };
const tools = ['get_weather', 'get_time'].map((name) => ({
  type: 'function',
  function: {
    name,
    description: 'What it says.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}));
const targets: [string, string, Target][] = [
  ['Gemini 2.5', 'gemini-2.5-flash', at('gemini', '/v1beta')],
  ['Gemini 3', 'gemini-3-flash', at('gemini', '/v1beta')],
  ['Gemini 3 on Vertex AI', 'gemini-3-flash', vertex],
  ['Claude on Vertex AI', 'claude-sonnet-4-5@20250929', vertex],
  ['Llama on Vertex AI', 'meta/llama-4-maverick', vertex],
];

describe.each(targets)('%s', (_name, model, target) => {
  test.each([false, true])('answers, streamed: %s', async (stream) => {
    const messages = [{ role: 'system', content: 'Be brief.' }, question];
    const { text, finishReason, usage } = await read(target, { model, messages }, { stream });
    expect(text).toMatch(/./);
    expect(finishReason).toBe('stop');
    const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = usage ?? {};
    expect(total).toBe(Number(prompt) + Number(completion));
    expect(completion).toBeGreaterThan(0);
  });

  test.each([false, true])('calls tools over three turns for a strict client, streamed: %s', async (stream) => {
    const body = { model, tools, tool_choice: 'required' };
    const messages: Json[] = [question];
    for (let turn = 0; turn < 2; turn += 1) {
      const { text, toolCalls, finishReason } = await read(target, { ...body, messages }, { stream });
      expect(finishReason).toBe('tool_calls');
      messages.push({ role: 'assistant', content: text, tool_calls: toolCalls });
      for (const { id } of toolCalls.toReversed()) messages.push({ role: 'tool', tool_call_id: id, content: 'rain' });
    }
    const last = await read(target, { model, tools, tool_choice: 'none', messages }, { stream });
    expect(last).toMatchObject({ finishReason: 'stop', text: expect.stringMatching(/./) });
  });

  test('holds the answer to a schema', async () => {
    const schema = {
      type: 'object',
      properties: { city: { $ref: '#/$defs/city' }, degrees: { type: ['integer', 'null'] } },
      required: ['city', 'degrees'],
      additionalProperties: false,
      $defs: { city: { type: 'string', enum: ['Köln', 'Bonn'] } },
    };
    const response_format = { type: 'json_schema', json_schema: { name: 'weather', schema, strict: true } };
    const { text } = await read(target, { model, messages: [question], response_format });
    expect(JSON.parse(text ?? '')).toEqual({
      city: expect.stringMatching(/^(Köln|Bonn)$/),
      degrees: expect.anything(),
    });
  });
});

const geminis = targets.filter(([name]) => name.startsWith('Gemini'));
describe.each(geminis)('%s alone', (_name, model, target) => {
  test('takes media and all parameters', async () => {
    const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
    const content = [
      { type: 'text', text: 'What is this?' },
      { type: 'image_url', image_url: { url: `data:image/png;base64,${png}` } },
      { type: 'image_url', image_url: { url: 'https://example.com/a.png' } },
      { type: 'input_audio', input_audio: { data: png, format: 'wav' } },
    ];
    const body = {
      model,
      messages: [
        { role: 'developer', content: 'Be kind.' },
        { role: 'user', content },
      ],
      max_tokens: 50,
      temperature: 0.2,
      top_p: 0.5,
      top_k: 3,
      n: 2,
      seed: 1,
      stop: ['STOP'],
      presence_penalty: 0.1,
      frequency_penalty: 0.1,
      reasoning_effort: 'low',
      safety_settings: [{ category: 'HARM_CATEGORY_HARASSMENT', threshold: 'OFF' }],
    };
    const { status, headers, body: answered } = await jsonOf(forward(target, body));
    expect([status, answered.toString()]).toEqual([200, expect.anything()]);
    expect(headers).not.toHaveProperty('x-gateway-dropped-params');
    expect(JSON.parse(answered.toString())).toMatchObject({ choices: [{ index: 0 }, { index: 1 }] });
  });

  test('takes recursive schemas, maps and tools without parameters', async () => {
    const node = { type: 'object', properties: { next: { $ref: '#/$defs/node' } } };
    const recursive = { $ref: '#/$defs/node', $defs: { node } };
    const map = { type: 'object', additionalProperties: { type: 'number' } };
    const declared = [recursive, map, undefined].map((parameters, index) => ({
      type: 'function',
      function: { name: `f${index}`, ...(parameters ? { parameters } : {}) },
    }));
    const { status } = await forward(target, { model, messages: [question], tools: declared });
    expect(status).toBe(200);
  });

  test('takes a conversation that another model began', async () => {
    const call = { id: 'toolu_01', type: 'function', function: { name: 'get_time', arguments: '{"city":"Köln"}' } };
    const messages = [
      question,
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', tool_call_id: 'toolu_01', content: '12:00' },
    ];
    expect((await read(target, { model, messages, tools, tool_choice: 'none' })).finishReason).toBe('stop');
  });
});

test.each([
  ['gemini', at('gemini', '/v1beta'), 'gemini-embedding-001'],
  ['vertex', vertex, 'text-embedding-005'],
])('embeddings of %s', async (_name, target, model) => {
  for (const input of ['one', ['one', 'two']]) {
    const answer = await jsonOf(forward(target, { model, input, dimensions: 8 }, { operation: 'embeddings' }));
    const { data } = JSON.parse(answer.body.toString()) as { data: { embedding: number[] }[] };
    expect([answer.status, data.map(({ embedding }) => embedding.length)]).toEqual([200, [input].flat().map(() => 8)]);
  }
});

test('Gemini’s models are listed', async () => {
  const answer = await jsonOf(forward(at('gemini', '/v1beta'), {}, { operation: 'models' }));
  expect(JSON.parse(answer.body.toString())).toMatchObject({
    object: 'list',
    data: expect.arrayContaining([expect.objectContaining({ id: expect.stringMatching(/^gemini-/), object: 'model' })]),
  });
});

test('a token server that refuses is reported as the credential’s fault', async () => {
  const secrets = { vertex_service_account_json: accountOf('/nowhere') };
  const call = forward({ ...vertex, secrets }, { model: 'gemini-3-flash', messages: [question] });
  await expect(call).rejects.toMatchObject({ kind: 'invalid_request', code: 'invalid_credential' });
});
