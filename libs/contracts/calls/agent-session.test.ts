import { expect, test } from 'vitest';
import { readAgentSession } from './agent-session.ts';

test.each<[string, Record<string, string>, [string, string | null, string | null] | null]>([
  ['no session', { 'user-agent': 'curl' }, null],
  ['our own headers', { 'x-gateway-session-id': 's', 'x-gateway-agent-id': 'a' }, ['s', 'a', null]],
  [
    'Claude Code, in a sub-agent of a sub-agent',
    {
      'x-claude-code-session-id': 's',
      'x-claude-code-agent-id': 'a2',
      'x-claude-code-parent-agent-id': 'a1',
    },
    ['s', 'a2', 'a1'],
  ],
  ['Claude Code, in the main agent', { 'x-claude-code-session-id': 's' }, ['s', null, null]],
  ['Codex, in its main thread', { 'session-id': 's', 'thread-id': 's' }, ['s', null, null]],
  [
    'Codex, in a thread that another one started',
    { 'session-id': 's', 'thread-id': 't', 'x-codex-parent-thread-id': 's' },
    ['s', 't', 's'],
  ],
  ['an older Codex', { session_id: 's' }, ['s', null, null]],
  ['the oldest Codex', { conversation_id: 'c' }, ['c', null, null]],
  [
    'our own headers before those of a client',
    { 'x-claude-code-session-id': 'c', 'x-claude-code-agent-id': 'a', 'x-gateway-session-id': 'g' },
    ['g', null, null],
  ],
])('reads the session of %s', (_what, headers, expected) => {
  const session = readAgentSession(headers);
  expect(session && [session.sessionId, session.agentId, session.parentAgentId]).toEqual(expected);
});

test.each(['', 'x'.repeat(129), 'a\u0007b', 'größe'])('ignores %j as an ID', (value) => {
  expect(readAgentSession({ 'x-gateway-session-id': value })).toBeNull();
  expect(readAgentSession({ 'x-gateway-session-id': 's', 'x-gateway-agent-id': value })?.agentId).toBeNull();
});

test('an unusable ID in one header leaves the others in use', () => {
  const headers = { 'x-gateway-session-id': '\u0001', 'x-claude-code-session-id': 's' };
  expect(readAgentSession(headers)?.sessionId).toBe('s');
});
