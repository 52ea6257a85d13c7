import { afterAll, describe, expect, test } from 'vitest';
import { startTestSimulator } from '#test/test-simulator.ts';
import type { Answer, Target } from '#libs/calls/call.ts';
import { createEgress } from '#libs/calls/upstream/egress/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createForwarder } from '#test/forwarder.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { readStream } from '#test/forwarding-rig.ts';
import type { Json } from './conformance-case.ts';
import { readChunks, readCompletion, type Chunk, type Completion, type Read } from './read-answer.ts';

// The simulator judges requests as the providers do (turns, thinking, tools, signatures) and answers in their formats, so
// that what an adapter sends is checked by something that does not share its ideas.

const { url } = await startTestSimulator();
const egress = createEgress({ allow: parseEgressAllow(new URL(url).host), connectTimeoutMs: 1_000 });
const forwarder = createForwarder({ egress, clock: systemClock, random: () => 0 });
afterAll(async () => {
  forwarder.stop();
  await egress.stop();
});

const apiKey = new Secret('sk-test-0123456789');
const at = (provider: string, folder: string, more: Partial<Target> = {}): Target => ({
  provider,
  baseUrl: new URL(folder, url),
  apiKey,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: provider,
  ...more,
});
const signed = {
  apiKey: null,
  settings: { aws_region: 'eu-west-1', aws_access_key_id: 'AKIASIMULATOR' },
  secrets: { aws_secret_access_key: new Secret('simulator') },
};

const bedrockModel = 'eu.anthropic.claude-sonnet-4-5-20250929-v1:0';
const arn = 'arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-4-5-20250929-v1:0';
const targets: [string, string, Target][] = [
  ['anthropic', 'claude-sonnet-4-5', at('anthropic', '/v1')],
  ['bedrock by API key', bedrockModel, at('bedrock', '/')],
  ['bedrock, signed', bedrockModel, at('bedrock', '/', signed)],
  ['bedrock, signed for an ARN', arn, at('bedrock', '/', signed)],
];

describe.each(targets)('%s', (_name, model, target) => {
  const forward = (body: Json, options: { stream?: boolean; strict?: boolean } = {}): Promise<Answer> => {
    const { stream = false, strict = true } = options;
    const sent = { model, messages: [{ role: 'user', content: 'Hello' }], ...body, ...(stream ? { stream } : {}) };
    return forwarder.forward(
      {
        operation: 'chat',
        body: Buffer.from(JSON.stringify(sent)),
        model,
        stream,
        includeUsage: stream,
        strict,
        signal: new AbortController().signal,
      },
      target,
    );
  };
  const read = async (body: Json, options: { stream?: boolean; strict?: boolean } = {}): Promise<Read> => {
    const answer = await forward(body, options);
    if (answer.kind === 'json') {
      expect([answer.status, answer.body.toString()]).toEqual([200, expect.anything()]);
      return readCompletion(JSON.parse(answer.body.toString()) as Completion);
    }
    if (answer.kind !== 'stream') throw new Error('no stream');
    const { payloads, error } = await readStream(answer);
    expect(error).toBeNull();
    return readChunks(payloads.map((payload) => JSON.parse(payload) as Chunk));
  };

  const tools = ['get_weather', 'get_time'].map((name) => ({
    type: 'function',
    function: {
      name,
      description: 'What it says.',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  }));

  test.each([false, true])('answers, streamed or not (%s)', async (stream) => {
    const { text, finishReason, usage } = await read({}, { stream });
    expect(text).toMatch(/./);
    expect(finishReason).toBe('stop');
    const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = usage ?? {};
    expect(total).toBe(Number(prompt) + Number(completion));
    expect(completion).toBeGreaterThan(0);
  });

  test.each([
    [false, true],
    [true, true],
    [false, false],
    [true, false],
  ])('calls tools over two turns, streamed: %s, strict: %s', async (stream, strict) => {
    const thinking = strict ? {} : { thinking: { type: 'enabled', budget_tokens: 1_024 }, max_tokens: 4_000 };
    const question = { role: 'user', content: 'What are weather and time in Köln?' };
    const choice = strict ? { tool_choice: 'required' } : {};
    const first = await read({ messages: [question], tools, ...choice, ...thinking }, { stream, strict });
    const thought = expect.objectContaining({ type: 'thinking', signature: expect.any(String) });
    expect(strict ? first.finishReason : first.contentBlocks?.[0]).toEqual(strict ? 'tool_calls' : thought);
    const messages = [
      question,
      {
        role: 'assistant',
        content: first.text,
        ...(first.toolCalls.length > 0 ? { tool_calls: first.toolCalls } : {}),
        ...(strict ? {} : { content_blocks: first.contentBlocks }),
      },
      ...first.toolCalls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: 'rain' })),
      { role: 'user', content: 'And now?' },
    ];
    const second = await read({ messages, tools, ...thinking }, { stream, strict });
    expect(second.finishReason).toMatch(/^(stop|tool_calls)$/);
  });

  test('holds the answer to a schema', async () => {
    const schema = {
      type: 'object',
      properties: { city: { type: 'string' }, degrees: { type: 'integer' } },
      required: ['city', 'degrees'],
      additionalProperties: false,
    };
    const response_format = { type: 'json_schema', json_schema: { name: 'weather', schema, strict: true } };
    const { text } = await read({ response_format });
    expect(JSON.parse(text ?? '')).toEqual({ city: expect.any(String), degrees: expect.any(Number) });
  });

  test('takes images, documents, instructions and a stop list', async () => {
    const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
    const content = [
      { type: 'text', text: 'What is this?' },
      { type: 'image_url', image_url: { url: `data:image/png;base64,${png}` } },
      { type: 'file', file: { filename: 'a.pdf', file_data: `data:application/pdf;base64,${png}` } },
    ];
    const messages = [
      { role: 'system', content: 'Be kind.' },
      { role: 'developer', content: 'Be brief.' },
      { role: 'user', content, name: 'Ann' },
    ];
    const answer = await forward({ messages, stop: ['STOP'], temperature: 0.2, seed: 1 });
    expect([answer.status, answer.headers['x-gateway-dropped-params']]).toEqual([200, 'messages[2].name, seed']);
  });
});

test('a wrong secret is refused by its signature', async () => {
  const secrets = { aws_secret_access_key: new Secret('not the simulator’s') };
  const body = Buffer.from(JSON.stringify({ model: bedrockModel, messages: [{ role: 'user', content: 'Hi' }] }));
  const answer = await forwarder.forward(
    {
      operation: 'chat',
      body,
      model: bedrockModel,
      stream: false,
      includeUsage: false,
      signal: new AbortController().signal,
    },
    at('bedrock', '/', { ...signed, secrets }),
  );
  expect(answer).toMatchObject({ kind: 'json', status: 403 });
});
