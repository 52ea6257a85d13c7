import { expect, test } from 'vitest';
import { bytesOf, translationCall, upstreamAt } from '#test/translation-call.ts';
import { findDialect, findTranslation } from '../dialects.ts';
import type { Operation, OutboundRequest } from '../provider.ts';
import { findProvider } from '../registry.ts';
import type { Json } from '../turns/json-value.ts';

const settings = { vertex_project_id: 'p', vertex_region: 'global', aws_region: 'eu-central-1' };
const secrets = {};

/** The body that a provider gets of a request with breakpoints, as text. */
function send(provider: string, operation: Operation, body: Json, cacheBreakpoints = true): string {
  const found = findProvider(provider);
  const model = String(body['model']);
  const translation = found && findTranslation(found, operation, model);
  if (!translation) throw new Error(`${provider} has no ${operation}`);
  const options = { operation, dialect: findDialect(operation), model, strict: false, cacheBreakpoints };
  const outbound: OutboundRequest = translation.encode(
    translationCall(body, options),
    upstreamAt('http://host/v1', { settings, secrets }),
  );
  return bytesOf(outbound).toString();
}

const tools = ['a', 'b'].map((name) => ({ name, description: name, input_schema: { type: 'object' } }));
const turns = ['one', 'two', 'three', 'four', 'five'].map((content, index) => ({
  role: index % 2 === 0 ? 'user' : 'assistant',
  content,
}));
const messages = { model: 'claude-sonnet-4-5', max_tokens: 9, system: 'Be brief.', tools, messages: turns };
const chat = {
  model: messages.model,
  messages: [{ role: 'system', content: messages.system }, ...turns],
  tools: tools.map(({ name, input_schema: parameters }) => ({ type: 'function', function: { name, parameters } })),
};

test.each<[string, Operation, Json]>([
  ['anthropic', 'messages', messages],
  ['anthropic', 'chat', chat],
  ['vertex', 'messages', { ...messages, model: 'anthropic/claude-sonnet-4-5' }],
  ['vertex', 'chat', { ...chat, model: 'anthropic/claude-sonnet-4-5' }],
])(
  'a request to %s in %s has breakpoints after its tools, its system prompt and two turns',
  (provider, operation, body) => {
    const sent = JSON.parse(send(provider, operation, body)) as typeof messages;
    const mark = { cache_control: { type: 'ephemeral' } };
    const text = (said: string) => ({ type: 'text', text: said, ...mark });
    expect(sent.tools.map((tool) => 'cache_control' in tool)).toEqual([false, true]);
    expect(sent.system).toEqual([text('Be brief.')]);
    expect(
      sent.messages.map(({ content }) => content).filter((content) => JSON.stringify(content).includes('ephemeral')),
    ).toEqual([[text('three')], [text('five')]]);
    expect(JSON.stringify(sent).match(/ephemeral/g)).toHaveLength(4);
  },
);

test('Bedrock gets them as its cache points, and only for Claude', () => {
  const body = send('bedrock', 'chat', { ...chat, model: 'anthropic.claude-sonnet-4-5-20250929-v1:0' });
  expect(body.match(/"cachePoint"/g)).toHaveLength(4);
  expect(send('bedrock', 'chat', { ...chat, model: 'meta.llama4-maverick-17b-instruct-v1:0' })).not.toContain(
    'cachePoint',
  );
});

test('a client that sets its own keeps them, and without the setting the bytes pass', () => {
  const own = {
    ...messages,
    system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral', ttl: '1h' } }],
  };
  expect(send('anthropic', 'messages', own)).toBe(JSON.stringify(own));
  expect(send('anthropic', 'messages', messages, false)).toBe(JSON.stringify(messages));
});
