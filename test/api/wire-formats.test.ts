import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { sdks, type Client } from './sdk.ts';
import { storeWireKeys, wireKeys } from './wire-keys.ts';

// The official OpenAI packages, unchanged, against each wire format that the core translates to.

let platform: TestPlatform;

beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  await storeWireKeys(platform);
});
afterAll(() => platform.stop());

const cityTool = (name: string) => ({
  type: 'function' as const,
  function: {
    name,
    description: `Tells the ${name}`,
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
});
const messages = [
  { role: 'developer' as const, content: 'Answer briefly.' },
  { role: 'user' as const, content: 'Say hello.' },
];

describe.each(wireKeys)('$provider', ({ provider, model, embeddings, prefix }) => {
  const name = `@wire-${provider}/${model}`;

  describe.each(sdks)('$name', (sdk) => {
    let client: Client;
    beforeAll(() => {
      client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
    });

    test('a completion is in the shape of OpenAI, and its usage adds up', async () => {
      const completion = await client.chat.completions.create({ model: name, messages, max_completion_tokens: 500 });
      expect(completion).toMatchObject({
        id: expect.stringMatching(/./),
        object: 'chat.completion',
        created: expect.any(Number),
        model: expect.any(String),
        choices: [
          { index: 0, finish_reason: 'stop', message: { role: 'assistant', content: expect.stringMatching(/./) } },
        ],
      });
      const { prompt_tokens, completion_tokens, total_tokens } = completion.usage ?? {};
      expect(prompt_tokens).toBeGreaterThan(0);
      expect(completion_tokens).toBeGreaterThan(0);
      expect(total_tokens).toBe((prompt_tokens ?? 0) + (completion_tokens ?? 0));
    });

    test('the streamed answer is the whole answer, with usage last because it was asked for', async () => {
      const whole = await client.chat.completions.create({ model: name, messages });
      const stream = await client.chat.completions.create({
        model: name,
        messages,
        stream: true,
        stream_options: { include_usage: true },
      });
      let text = '';
      const finishes: string[] = [];
      const ids = new Set<string>();
      const usages = [];
      for await (const chunk of stream) {
        ids.add(chunk.id);
        text += chunk.choices[0]?.delta.content ?? '';
        if (chunk.choices[0]?.finish_reason) finishes.push(chunk.choices[0].finish_reason);
        if (chunk.usage) usages.push({ usage: chunk.usage, choices: chunk.choices.length });
      }
      expect(text).toBe(whole.choices[0]?.message.content);
      expect(finishes).toEqual(['stop']);
      expect(ids.size).toBe(1);
      expect(usages).toHaveLength(1);
      expect(usages[0]?.choices).toBe(0);
      expect(usages[0]?.usage.total_tokens).toBe(whole.usage?.total_tokens);
    });

    test('tools: two calls at once by the stream helper, their results go back, and the model answers in words', async () => {
      const tools = [cityTool('weather'), cityTool('time')];
      const ask = { role: 'user' as const, content: 'Ask weather and time for Paris.' };
      const first = await client.chat.completions.stream({ model: name, messages: [ask], tools }).finalChatCompletion();
      expect(first.choices[0]?.finish_reason).toBe('tool_calls');
      const message = first.choices[0]?.message;
      const calls = (message?.tool_calls ?? []).filter((call) => call.type === 'function');
      expect(calls.map((call) => call.function.name)).toEqual(['weather', 'time']);
      for (const call of calls) expect(JSON.parse(call.function.arguments)).toHaveProperty('city');
      if (!message) throw new Error('no message');
      const results = calls.map(({ id }) => ({ role: 'tool' as const, tool_call_id: id, content: 'fine' }));
      const second = await client.chat.completions.create({ model: name, messages: [ask, message, ...results], tools });
      expect(second.choices[0]).toMatchObject({
        finish_reason: 'stop',
        message: { content: expect.stringMatching(/./) },
      });
    });

    test('structured output is JSON of the schema', async () => {
      const schema = {
        type: 'object',
        properties: { city: { type: 'string' }, people: { type: 'integer' } },
        required: ['city', 'people'],
        additionalProperties: false,
      };
      const { choices } = await client.chat.completions.create({
        model: name,
        messages,
        response_format: { type: 'json_schema', json_schema: { name: 'city', strict: true, schema } },
      });
      const answer: unknown = JSON.parse(choices[0]?.message.content ?? '');
      expect(answer).toEqual({ city: expect.any(String), people: expect.any(Number) });
    });

    test('a JSON object of any shape is the whole content, of streams too', async () => {
      const asked = {
        model: name,
        messages: [...messages, { role: 'user' as const, content: 'Use JSON.' }],
        response_format: { type: 'json_object' as const },
      };
      const { data, response } = await client.chat.completions.create(asked).withResponse();
      const whole = data.choices[0]?.message.content ?? '';
      expect(JSON.parse(whole)).toEqual({
        answer: expect.any(String),
        confidence: expect.any(Number),
        items: expect.any(Array),
      });
      expect(response.headers.get('x-gateway-dropped-params')).toBeNull();
      const stream = await client.chat.completions.create({ ...asked, stream: true });
      let streamed = '';
      for await (const chunk of stream) streamed += chunk.choices[0]?.delta.content ?? '';
      expect(streamed).toBe(whole);
    });

    test('a wrong model is an error of the SDK, with the provider named and its key not', async () => {
      const error: unknown = await client.chat.completions
        .create({ model: `@wire-${provider}/${prefix}sim-fault-400`, messages })
        .then(
          () => null,
          (thrown: unknown) => thrown,
        );
      expect(error).toBeInstanceOf(sdk.OpenAI.BadRequestError);
      expect(String(error)).toContain('Simulated failure');
    });

    test.skipIf(embeddings === null)('embeddings, which the SDK asks for in base64, are vectors', async () => {
      const { data } = await client.embeddings.create({ model: `@wire-${provider}/${embeddings}`, input: 'one' });
      expect(data).toHaveLength(1);
      expect(data[0]?.embedding.length).toBeGreaterThan(8);
      expect(Math.hypot(...(data[0]?.embedding ?? []))).toBeCloseTo(1, 2);
    });
  });
});
