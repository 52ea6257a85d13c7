import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { CallOperation, Relayed } from '#libs/calls/call.ts';
import { namedObjects } from './named-objects.ts';

const relayed = { method: 'POST', path: '/', accept: null, send: () => ({}) } as unknown as Relayed;
const namedIn = (operation: CallOperation, body: unknown, text = JSON.stringify(body)): string[] =>
  [...namedObjects({ operation, body: Buffer.from(text), ...(operation === 'chat' ? {} : { relayed }) })].toSorted();

test.each<[CallOperation, object, string[]]>([
  ['responses', { previous_response_id: 'resp_1', input: 'Hi' }, ['resp_1']],
  ['responses', { conversation: 'conv_1' }, ['conv_1']],
  ['responses', { conversation: { id: 'conv_1' } }, ['conv_1']],
  ['responses', { input: [{ type: 'item_reference', id: 'msg_1' }] }, ['msg_1']],
  ['responses', { input: [{ id: 'msg_1' }] }, ['msg_1']],
  ['responses', { input: [{ type: 'reasoning', id: 'rs_1', summary: [] }] }, ['rs_1']],
  ['responses', { input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'file-1' }] }] }, ['file-1']],
  ['responses', { tools: [{ type: 'file_search', vector_store_ids: ['vs_1', 'vs_2'] }] }, ['vs_1', 'vs_2']],
  ['responses', { tools: [{ type: 'code_interpreter', container: 'cntr_1' }] }, ['cntr_1']],
  ['responses', { tools: [{ type: 'code_interpreter', container: { file_ids: ['file-1'] } }] }, ['file-1']],
  ['responses', { prompt: { id: 'pmpt_1', variables: { x: { type: 'input_file', file_id: 'file-1' } } } }, ['file-1']],
  ['conversations', { items: [{ type: 'item_reference', id: 'msg_1' }] }, ['msg_1']],
  ['threads', { assistant_id: 'asst_1', thread: { messages: [] } }, ['asst_1']],
  ['threads', { messages: [{ attachments: [{ file_id: 'file-1' }] }] }, ['file-1']],
  ['threads', { tool_resources: { file_search: { vector_stores: [{ file_ids: ['file-1'] }] } } }, ['file-1']],
  ['vector_stores', { file_id: 'assistant-of-azure' }, ['assistant-of-azure']],
  ['images', { images: [{ file_id: 'file-1' }] }, ['file-1']],
  ['chat', { messages: [{ content: [{ type: 'file', file: { file_id: 'file-1' } }] }] }, ['file-1']],
  ['chat', { some_new_object_id: 'vs_1' }, ['vs_1']],
  ['messages', { container: { id: 'container_1', skills: [{ skill_id: 'skill_1' }] } }, ['container_1', 'skill_1']],
  ['messages', { messages: [{ content: [{ type: 'tool_result', tool_use_id: 'toolu_1' }] }] }, []],
])('%s %j names %j', (operation, body, ids) => {
  expect(namedIn(operation, body)).toEqual(ids);
});

test.each<[CallOperation, object]>([
  ['chat', { messages: [{ role: 'tool', tool_call_id: 'call_1', content: 'file-1' }], user: 'file-1' }],
  ['chat', { metadata: { file_id: 'file-1' }, session_id: 'abc' }],
  ['chat', { tools: [{ function: { parameters: { properties: { file_id: { enum: ['file-1'] } } } } }] }],
  ['responses', { input: [{ type: 'message', role: 'assistant', id: 'msg_1', content: [] }] }],
  ['responses', { input: [{ type: 'function_call_output', id: 'fc_1', call_id: 'call_1', output: 'x' }] }],
  ['vector_stores', { attributes: { owner_id: 'file-1' } }],
])('%s %j names nothing', (operation, body) => {
  expect(namedIn(operation, body)).toEqual([]);
});

describe('however it is written', () => {
  test('an ID is found at any depth', () => {
    const id = fc.stringMatching(/^vs_[a-z0-9]{1,20}$/);
    const place = fc.array(fc.constantFrom('input', 'tools', 'content', 'thread', 'tool_resources', 'new_member', 0), {
      maxLength: 8,
    });
    fc.assert(
      fc.property(id, place, fc.constantFrom('vector_store_id', 'vector_store_ids', 'file_id'), (one, path, name) => {
        const inner: unknown = { [name]: name.endsWith('s') ? [one] : one };
        const body = path.reduce((value, step) => (step === 0 ? [value] : { [step]: value }), inner);
        expect(namedIn('chat', { x: body })).toEqual([one]);
      }),
    );
  });

  test('a name with escaped letters is the same name', () => {
    fc.assert(
      fc.property(fc.array(fc.boolean(), { minLength: 7, maxLength: 7 }), (escaped) => {
        const name = 'file_id'
          .split('')
          .map((letter, at) => (escaped[at] ? `\\u00${letter.charCodeAt(0).toString(16)}` : letter))
          .join('');
        expect(namedIn('chat', null, `{"messages":[{"${name}":"file-1"}]}`)).toEqual(['file-1']);
      }),
    );
  });
});

test('what a config adds to a body counts, and what it removes does not', () => {
  const body = Buffer.from('{"previous_response_id":"resp_1"}');
  const edits = { previous_response_id: undefined, conversation: '"conv_2"' };
  expect([...namedObjects({ operation: 'responses', body, edits })]).toEqual(['conv_2']);
  // The body of a pass-through call is sent unchanged.
  expect([...namedObjects({ operation: 'responses', body, edits, relayed })]).toEqual(['resp_1']);
});

test('a body that names too many objects is refused', () => {
  const ids = Array.from({ length: 1_001 }, (_, index) => `file-${index}`);
  expect(() => namedIn('vector_stores', { file_ids: ids })).toThrow(/at most 1000 objects/);
});
