import { expect, test } from 'vitest';
import { outputTexts } from './call-texts.ts';
import { buildStreamAnswer } from './stream-answer.ts';

const events = [
  { type: 'message_start', message: { id: 'msg_1', model: 'claude', content: [] } },
  { type: 'content_block_start', index: 0, content_block: { type: 'thinking', thinking: '', signature: '' } },
  { type: 'content_block_delta', index: 0, delta: { type: 'thinking_delta', thinking: 'Let me ' } },
  { type: 'content_block_delta', index: 0, delta: { type: 'thinking_delta', thinking: 'see.' } },
  { type: 'ping' },
  { type: 'content_block_start', index: 1, content_block: { type: 'text', text: '' } },
  { type: 'content_block_delta', index: 1, delta: { type: 'text_delta', text: 'The plan is ' } },
  { type: 'content_block_delta', index: 1, delta: { type: 'text_delta', text: 'secret.' } },
  { type: 'content_block_start', index: 2, content_block: { type: 'tool_use', id: 't', name: 'run', input: {} } },
  { type: 'content_block_delta', index: 2, delta: { type: 'input_json_delta', partial_json: '{"cmd":"del' } },
  { type: 'content_block_delta', index: 2, delta: { type: 'input_json_delta', partial_json: 'ete"}' } },
  { type: 'message_delta', delta: { stop_reason: 'tool_use' } },
];

const messageOf = (sent: readonly object[]): Record<string, unknown> => {
  const builder = buildStreamAnswer('messages');
  for (const event of sent) builder.add(JSON.stringify(event));
  return JSON.parse(builder.body().toString()) as Record<string, unknown>;
};

test('the events of a message are the message that guardrails read', () => {
  expect(messageOf(events)).toEqual({
    id: 'msg_1',
    model: 'claude',
    stop_reason: 'tool_use',
    content: [
      { type: 'thinking', thinking: 'Let me see.', signature: '' },
      { type: 'text', text: 'The plan is secret.' },
      { type: 'tool_use', id: 't', name: 'run', input: { cmd: 'delete' } },
    ],
  });
});

test('text, thinking, and the name and arguments of a call are read', () => {
  const { said, measured } = outputTexts('messages', messageOf(events));
  for (const text of ['The plan is secret.', 'Let me see.', 'run', '{"cmd":"delete"}']) {
    expect(said.join('\n')).toContain(text);
  }
  expect(measured).toEqual(['The plan is secret.']);
});

test('arguments that were cut off are read as far as they came', () => {
  expect(outputTexts('messages', messageOf(events.slice(0, 10))).said.join('\n')).toContain('del');
});

test('what a stream only begins with counts as well, so that none is kept without a bound', () => {
  const builder = buildStreamAnswer('messages');
  const text = 'x'.repeat(1_000_000);
  const events = Array.from({ length: 17 }, (_event, index) => ({
    type: 'content_block_start',
    index,
    content_block: { type: 'text', text },
  }));
  for (const event of events) expect(builder.add(JSON.stringify(event))).toBeGreaterThan(2_000_000);
  expect(builder.isTooLong).toBe(true);
});
