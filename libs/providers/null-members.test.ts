import { describe, expect, test } from 'vitest';
import { ChatCompletionRequest } from '#libs/contracts/calls/chat.ts';
import { EmbeddingRequest } from '#libs/contracts/calls/embeddings.ts';
import { encodeChat, translationCall, upstreamAt } from '#test/translation-call.ts';
import type { Provider } from './provider.ts';
import { findProvider } from './registry.ts';

// A member that is null counts as not given, for every adapter that translates.

const translated: [string, string][] = [
  ['anthropic', 'claude-sonnet-4-5'],
  ['gemini', 'gemini-2.5-flash'],
  ['vertex', 'gemini-2.5-flash'],
  ['vertex', 'anthropic.claude-sonnet-4-5@20250929'],
  ['bedrock', 'anthropic.claude-sonnet-4-5-20250929-v1:0'],
  ['bedrock', 'amazon.nova-pro-v1:0'],
  ['cohere', 'command-a-03-2025'],
];
const settings = { aws_region: 'us-east-1', vertex_region: 'us-central1', vertex_project_id: 'p' };
const upstream = upstreamAt('https://provider.example/v1', { settings });

function providerOf(id: string): Provider {
  const provider = findProvider(id);
  if (provider === undefined) throw new Error(`no provider ${id}`);
  return provider;
}

/** The body with every member that is null left out. */
const withoutNulls = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(withoutNulls);
  if (typeof value !== 'object' || value === null) return value;
  const given = Object.entries(value).filter(([, member]) => member !== null);
  return Object.fromEntries(given.map(([name, member]) => [name, withoutNulls(member)]));
};

const nullable = (schema: typeof ChatCompletionRequest | typeof EmbeddingRequest) =>
  Object.entries(schema.shape).flatMap(([name, member]) => (member.safeParse(null).success ? [[name, null]] : []));

const call = { id: 'call_1', type: 'function', function: { name: 'f', arguments: '{}' } };
const chatBody = (model: string) => ({
  ...(Object.fromEntries(nullable(ChatCompletionRequest)) as object),
  service_tier: null,
  reasoning_effort: null,
  top_k: null,
  model,
  messages: [
    { role: 'system', content: 'Be brief.', name: null, cache_control: null },
    {
      role: 'user',
      content: [{ type: 'text', text: 'Hi', image_url: null, cache_control: null }],
      name: null,
    },
    { role: 'assistant', content: null, name: null, tool_calls: [call], function_call: null, content_blocks: null },
    { role: 'tool', content: 'done', tool_call_id: 'call_1', name: null },
    { role: 'assistant', content: 'Ok.', tool_calls: null, function_call: null, refusal: null, audio: null },
    { role: 'user', content: 'And now?' },
  ],
  tools: [{ type: 'function', function: { name: 'f', description: null, parameters: null, strict: null } }],
  response_format: { type: 'json_schema', json_schema: { name: 'n', schema: { type: 'object' }, description: null } },
});

describe.each(translated)('%s, %s', (id, model) => {
  test('a chat request with nulls is encoded as the one without them', () => {
    const body = chatBody(model);
    expect(ChatCompletionRequest.safeParse(body).error).toBeUndefined();
    const encoded = (of: object) => encodeChat(providerOf(id), translationCall(of), upstream);
    const [withNulls, plain] = [encoded(body), encoded(withoutNulls(body) as object)];
    expect(withNulls.body).toEqual(plain.body);
    expect(withNulls.dropped).toEqual(plain.dropped);
  });

  test('tools, tool choice and format may be null as a whole', () => {
    const body = {
      ...chatBody(model),
      messages: [{ role: 'user', content: 'Hi' }],
      tools: null,
      response_format: null,
    };
    const encoded = (of: object) => encodeChat(providerOf(id), translationCall(of), upstream);
    expect(encoded(body).body).toEqual(encoded(withoutNulls(body) as object).body);
  });
});

test.each([
  ['gemini', 'gemini-embedding-001'],
  ['cohere', 'embed-v4.0'],
  ['bedrock', 'amazon.titan-embed-text-v2:0'],
])('%s: embeddings with nulls are encoded as those without', (id, model) => {
  const body = { ...Object.fromEntries(nullable(EmbeddingRequest)), model, input: 'Hi' };
  expect(Object.keys(body)).toContain('dimensions');
  const encoded = (of: object) => {
    const made = providerOf(id).operations.embeddings?.encode(
      translationCall(of, { operation: 'embeddings' }),
      upstream,
    );
    return { ...made, body: Buffer.from(made?.body as Uint8Array).toString() };
  };
  expect(encoded(body)).toEqual(encoded(withoutNulls(body) as object));
});
