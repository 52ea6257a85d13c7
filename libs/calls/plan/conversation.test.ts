import { expect, test } from 'vitest';
import { findConversation } from './conversation.ts';

const find = (params: Record<string, unknown>, session: string | null = null) =>
  findConversation({
    params,
    metadata: null,
    pathname: '/v1/chat/completions',
    session: session === null ? null : { sessionId: session, agentId: null, parentAgentId: null },
  });
const system = { role: 'system', content: 'Be brief.' };
const user = (content: unknown) => ({ role: 'user', content });
const turns = [{ role: 'assistant', content: 'Hello' }, user('And now?')];

test('the session of a call is its conversation, whatever the body contains', () => {
  expect(find({ prompt_cache_key: 'k', messages: [system, user('Hi'), ...turns] }, 's')).toBe('session s');
});

test('a line of a batch has no conversation', () => {
  expect(
    findConversation({
      params: { prompt_cache_key: 'k', messages: [user('Hi'), ...turns] },
      metadata: null,
      pathname: '/v1/chat/completions',
    }),
  ).toBeNull();
});

test('without a session, the prompt cache key comes before the beginning of the messages', () => {
  expect(find({ prompt_cache_key: 'k', messages: [user('Hi'), ...turns] })).toBe('key k');
  expect(find({ prompt_cache_key: 7, messages: [user('Hi'), ...turns] })).toContain('start');
});

test('all later calls of a conversation begin alike, and others differ', () => {
  const second = find({ messages: [system, user('Hi'), ...turns] });
  expect(find({ messages: [system, user('Hi'), ...turns, ...turns] })).toBe(second);
  expect(second).not.toBeNull();
  expect(find({ messages: [system, user('Hey'), ...turns] })).not.toBe(second);
  expect(find({ messages: [user('Hi'), ...turns] })).not.toBe(second);
  expect(find({ system: 'Be brief.', messages: [user('Hi'), ...turns] })).not.toBe(second);
});

test('parts of a message count by their texts', () => {
  const parts = (text: string) => [
    { type: 'text', text },
    { type: 'image_url', image_url: { url: 'data:…' } },
  ];
  const found = find({ messages: [user(parts('Hi')), ...turns] });
  expect(find({ messages: [user(parts('Hi')), ...turns, ...turns] })).toBe(found);
  expect(find({ messages: [user(parts('Hey')), ...turns] })).not.toBe(found);
});

test.each<[string, Record<string, unknown>]>([
  ['a single message', { messages: [user('Hi')] }],
  ['a system prompt and a single message', { messages: [system, user('Hi')] }],
  ['no messages', { input: 'Hi' }],
  ['messages in one text', { messages: 'Hi' }],
  ['no message of the user', { messages: [system, ...turns.slice(0, 1)] }],
  ['messages of other types', { messages: [null, 7, 'x'] }],
  ['an empty key', { prompt_cache_key: '' }],
])('%s names no conversation', (_what, params) => expect(find(params)).toBeNull());

test('of a long text both ends and the length are read', () => {
  const long = (middle: string) => `${'a'.repeat(5_000)}${middle}${'b'.repeat(5_000)}`;
  const found = find({ messages: [user(long('x')), ...turns] }) ?? '';
  expect(found.length).toBeLessThan(10_000);
  expect(find({ messages: [user(long('y')), ...turns] })).toBe(found);
  expect(find({ messages: [user(long('xx')), ...turns] })).not.toBe(found);
});
