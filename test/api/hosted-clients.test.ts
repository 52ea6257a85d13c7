import AnthropicBedrock from '@anthropic-ai/bedrock-sdk';
import { AnthropicVertex } from '@anthropic-ai/vertex-sdk';
import { APIError } from '@anthropic-ai/sdk';
import { AzureOpenAI } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { storeWireKeys, wireKeys } from './wire-keys.ts';

// The SDKs of those who host the models of others, unchanged, against each wire format that the core translates to.

let platform: TestPlatform;
let azure: AzureOpenAI;
let bedrock: AnthropicBedrock;
let vertex: AnthropicVertex;

beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  const { adminKey, baseUrl } = platform;
  const { origin } = new URL(baseUrl);
  const authorization = { authorization: `Bearer ${adminKey}` };
  await storeWireKeys(platform);
  azure = new AzureOpenAI({ endpoint: origin, apiKey: adminKey, apiVersion: '2024-10-21', maxRetries: 0 });
  bedrock = new AnthropicBedrock({ baseURL: origin, apiKey: adminKey, awsRegion: 'us-east-1', maxRetries: 0 });
  // Its only other way to a token is Google's server.
  const authClient = { getRequestHeaders: () => Promise.resolve(new Headers(authorization)) } as never;
  vertex = new AnthropicVertex({
    baseURL: `${origin}/v1`,
    region: 'global',
    projectId: 'project',
    authClient,
    maxRetries: 0,
  });
});
afterAll(() => platform.stop());

const question = { max_tokens: 200, messages: [{ role: 'user' as const, content: 'Say hello.' }] };

describe.each(wireKeys)('$provider', ({ provider, model, embeddings }) => {
  const name = `@wire-${provider}/${model}`;

  test("Azure's client asks a deployment for completions, their stream and embeddings", async () => {
    const whole = await azure.chat.completions.create({ ...question, model: name });
    expect(whole.choices[0]?.message.content).toMatch(/./);
    let text = '';
    for await (const chunk of await azure.chat.completions.create({ ...question, model: name, stream: true }))
      text += chunk.choices[0]?.delta.content ?? '';
    expect(text).toBe(whole.choices[0]?.message.content);
    if (embeddings === null) return;
    const vectors = await azure.embeddings.create({ model: `@wire-${provider}/${embeddings}`, input: 'The sky' });
    expect(vectors.data).toHaveLength(1);
  });

  test.each(['bedrock', 'vertex'] as const)(
    'the client for Claude on %s gets messages and their stream',
    async (host) => {
      const client = host === 'bedrock' ? bedrock : vertex;
      const whole = await client.messages.create({ ...question, model: name });
      const [block] = whole.content;
      expect(block).toMatchObject({ type: 'text', text: expect.stringMatching(/./) });
      expect(whole.usage.output_tokens).toBeGreaterThan(0);
      const types: string[] = [];
      let text = '';
      for await (const event of await client.messages.create({ ...question, model: name, stream: true })) {
        types.push(event.type);
        if (event.type === 'content_block_delta' && event.delta.type === 'text_delta') text += event.delta.text;
      }
      expect(text).toBe(block?.type === 'text' ? block.text : null);
      expect([types[0], types.at(-1)]).toEqual(['message_start', 'message_stop']);
    },
  );
});

const [first] = wireKeys;
const faulty = (fault: string): string => `@wire-${first?.provider}/sim-fault-${fault}`;

test('the deployment is the model, whatever the body says', async () => {
  const deployed = new AzureOpenAI({
    endpoint: new URL(platform.baseUrl).origin,
    apiKey: platform.adminKey,
    apiVersion: '2024-10-21',
    deployment: `@wire-${first?.provider}/${first?.model}`,
  });
  const answer = await deployed.chat.completions.create({ ...question, model: 'unknown' });
  expect(answer.choices[0]?.message.content).toMatch(/./);
});

test("everything else of Azure's API is OpenAI's", async () => {
  const model = `@wire-${first?.provider}/${first?.model}`;
  expect((await azure.responses.create({ model, input: 'Say hello.' })).output_text).toMatch(/./);
  expect((await azure.files.list()).data).toEqual([]);
});

test("tokens are counted on Vertex AI's path", async () => {
  const { messages } = question;
  const counted = await vertex.messages.countTokens({ messages, model: `@wire-${first?.provider}/${first?.model}` });
  expect(counted.input_tokens).toBeGreaterThan(0);
});

test('betas in the body reach the provider as a header, and malformed ones are refused', async () => {
  const send = (betas: unknown): Promise<Response> =>
    fetch(
      `${new URL(platform.baseUrl).origin}/model/${encodeURIComponent(`@wire-${first?.provider}/${first?.model}`)}/invoke`,
      {
        method: 'POST',
        headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
        body: JSON.stringify({ ...question, anthropic_version: 'bedrock-2023-05-31', anthropic_beta: betas }),
      },
    );
  expect((await send(['context-1m-2025-08-07'])).status).toBe(200);
  const refused = await send(['a\r\nb: c']);
  expect(refused.status).toBe(400);
  expect(await refused.json()).toEqual({
    __type: 'ValidationException',
    reason: 'invalid_type',
    message: expect.stringContaining("'anthropic_beta' must be a list of at most 50 names"),
  });
});

test("errors of gateway and provider have Bedrock's form", async () => {
  const unknown = bedrock.messages.create({ ...question, model: 'no-such-model' });
  await expect(unknown).rejects.toMatchObject({ status: 404, error: { __type: 'ResourceNotFoundException' } });
  const failed = bedrock.messages.create({ ...question, model: faulty('429') });
  await expect(failed).rejects.toMatchObject({ status: 429, error: { __type: 'ThrottlingException' } });
});

test("a stream that breaks off ends with an exception of Bedrock, or an error in Anthropic's form", async () => {
  for (const client of [bedrock, vertex]) {
    const read = async (): Promise<void> => {
      const stream = await client.messages.create({ ...question, model: faulty('cut'), stream: true });
      for await (const _event of stream);
    };
    await expect(read()).rejects.toBeInstanceOf(APIError);
  }
});
