import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogle } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Agent, OpenAIProvider, Runner, tool as agentTool } from '@openai/agents';
import {
  APICallError,
  embedMany,
  generateText,
  Output,
  stepCountIs,
  streamText,
  tool,
  type EmbeddingModel,
  type LanguageModel,
} from 'ai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { storeWireKeys, wireKeys } from './wire-keys.ts';

// The AI SDK with each of its providers, and OpenAI's Agents SDK, unchanged, against each wire format that the core
// translates to.

let platform: TestPlatform;

beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  await storeWireKeys(platform);
});
afterAll(() => platform.stop());

const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const city = z.object({ city: z.string(), people: z.number().int() });
const question = 'Ask weather and time for Paris.';

type Connected = { model: (name: string) => LanguageModel; embedding?: (name: string) => EmbeddingModel };

/** The providers of the AI SDK, by the format that they speak. */
const providers: Record<string, () => Connected> = {
  'chat completions': () => {
    const sluice = createOpenAICompatible({
      name: 'sluice',
      apiKey: platform.adminKey,
      baseURL: platform.baseUrl,
      includeUsage: true,
      supportsStructuredOutputs: true,
    });
    return { model: (name) => sluice(name), embedding: (name) => sluice.embeddingModel(name) };
  },
  Responses: () => {
    const sluice = createOpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    return { model: (name) => sluice.responses(name), embedding: (name) => sluice.embeddingModel(name) };
  },
  Messages: () => {
    const sluice = createAnthropic({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    return { model: (name) => sluice(name) };
  },
  Gemini: () => {
    const { origin } = new URL(platform.baseUrl);
    const sluice = createGoogle({ apiKey: platform.adminKey, baseURL: `${origin}/v1beta` });
    return { model: (name) => sluice(name), embedding: (name) => sluice.embeddingModel(name) };
  },
};

describe.each(wireKeys)('$provider', ({ provider, model, embeddings, prefix }) => {
  /** Options of the simulated model; not every provider allows `+` in a name. */
  const named = (...options: string[]): string => [`@wire-${provider}/${model}`, ...options].join('__');
  const failing = `@wire-${provider}/${prefix}sim-fault-400`;

  describe.each(Object.entries(providers))('AI SDK, %s', (format, connect) => {
    test('generateText and streamText give the same text', async () => {
      const prompt = 'Say hello.';
      const { text, usage, finishReason } = await generateText({ model: connect().model(named()), prompt });
      expect(text).not.toBe('');
      expect(finishReason).toBe('stop');
      expect(usage.totalTokens).toBeGreaterThan(0);
      const streamed = streamText({ model: connect().model(named()), prompt });
      expect(await streamed.text).toBe(text);
      expect((await streamed.usage).totalTokens).toBe(usage.totalTokens);
    });

    test.each(['whole', 'streamed'])('tools over several steps, %s', async (how) => {
      const asked: string[] = [];
      const telling = (what: string) =>
        tool({
          description: `Tells the ${what}`,
          inputSchema: z.object({ city: z.string() }),
          execute: (input) => {
            asked.push(what);
            return `${what} of ${input.city} is fine`;
          },
        });
      const request = {
        model: connect().model(named('think')),
        prompt: question,
        tools: { weather: telling('weather'), time: telling('time') },
        stopWhen: stepCountIs(4),
      };
      const result = how === 'whole' ? await generateText(request) : streamText(request);
      expect(await result.text).not.toBe('');
      expect(await result.steps).toHaveLength(2);
      expect(asked.toSorted()).toEqual(['time', 'weather']);
    });

    test('sees images', async () => {
      const { text } = await generateText({
        model: connect().model(named()),
        messages: [
          {
            role: 'user',
            content: [
              { type: 'text', text: 'What is it?' },
              { type: 'file', data: pixel, mediaType: 'image/png' },
            ],
          },
        ],
      });
      expect(text).not.toBe('');
    });

    test('gives structured output', async () => {
      const { output } = await generateText({
        model: connect().model(named()),
        prompt: 'A city.',
        output: Output.object({ schema: city }),
      });
      expect(city.parse(output)).toEqual(output);
    });

    test('fails with the status and the text of the provider', async () => {
      const failed = await generateText({ model: connect().model(failing), prompt: 'Hi', maxRetries: 0 }).catch(
        (error: unknown) => error,
      );
      expect(failed).toBeInstanceOf(APICallError);
      expect(failed).toMatchObject({ statusCode: 400, message: expect.stringContaining('Simulated failure') });
    });

    test.skipIf(embeddings === null || format === 'Messages')('embedMany', async () => {
      const { embeddings: vectors } = await embedMany({
        model: connect().embedding?.(`@wire-${provider}/${embeddings}`) as EmbeddingModel,
        // Titan takes one text per call.
        values: provider === 'bedrock' ? ['one'] : ['one', 'two', 'three'],
      });
      expect(new Set(vectors.map((vector) => vector[0])).size).toBe(provider === 'bedrock' ? 1 : 3);
    });
  });

  describe.each([
    ['Responses', true],
    ['chat completions', false],
  ])('Agents SDK, %s', (_format, useResponses) => {
    const start = () =>
      new Runner({
        modelProvider: new OpenAIProvider({ apiKey: platform.adminKey, baseURL: platform.baseUrl, useResponses }),
        tracingDisabled: true,
      });

    test.each(['whole', 'streamed'])('an agent uses tools, %s', async (how) => {
      const asked: string[] = [];
      const telling = (what: string) =>
        agentTool({
          name: what,
          description: `Tells the ${what}`,
          parameters: z.object({ city: z.string() }),
          execute: (input) => {
            asked.push(what);
            return `${what} of ${input.city} is fine`;
          },
        });
      const agent = new Agent({ name: 'Guide', model: named(), tools: [telling('weather'), telling('time')] });
      const run = how === 'whole' ? start().run(agent, question) : start().run(agent, question, { stream: true });
      const result = await run;
      if ('completed' in result) await result.completed;
      expect(asked.toSorted()).toEqual(['time', 'weather']);
      expect(result.finalOutput).toEqual(expect.stringMatching(/./));
    });

    test('gives structured output', async () => {
      const agent = new Agent({ name: 'Guide', model: named(), outputType: city });
      const { finalOutput } = await start().run(agent, 'A city.');
      expect(city.parse(finalOutput)).toEqual(finalOutput);
    });

    test('fails with the status and the text of the provider', async () => {
      const agent = new Agent({ name: 'Guide', model: failing });
      await expect(start().run(agent, 'Hi')).rejects.toMatchObject({
        status: 400,
        message: expect.stringContaining('Simulated failure'),
      });
    });
  });
});
