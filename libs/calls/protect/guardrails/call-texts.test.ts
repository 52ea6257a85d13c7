import { expect, test } from 'vitest';
import { inputTexts } from './call-texts.ts';

const said = (...given: Parameters<typeof inputTexts>): string => inputTexts(...given).said.join('\n');
const user = [{ role: 'user', content: 'hello' }];

test('the suffix of a completion is checked, like its prompt', () => {
  expect(said('completions', { prompt: 'a', suffix: 'secret' })).toContain('secret');
  expect(inputTexts('completions', { prompt: 'a', suffix: 'secret' }).measured).toEqual(['a']);
});

test.each([
  ['the schema of the answer', { response_format: { json_schema: { schema: { description: 'secret' } } } }],
  ['a predicted answer', { prediction: { type: 'content', content: [{ type: 'text', text: 'secret' }] } }],
  ['the name of a speaker', { messages: [{ role: 'user', name: 'secret', content: 'hello' }] }],
])('of a chat, %s is looked through', (_what, body) => {
  expect(said('chat', { messages: user, ...body })).toContain('secret');
});

test.each([
  ['a variable of a stored prompt with the name type', { prompt: { id: 'p', variables: { type: 'secret' } } }],
  ['the schema of the answer', { text: { format: { type: 'json_schema', schema: { description: 'secret' } } } }],
  ['code that was run', { input: [{ type: 'code_interpreter_call', id: 'c', code: 'secret' }] }],
  ['what a shell wrote', { input: [{ type: 'shell_call_output', call_id: 'c', output: [{ stdout: 'secret' }] }] }],
  ['what was found in files', { input: [{ type: 'file_search_call', results: [{ text: 'secret' }] }] }],
  ['what an MCP server answered', { input: [{ type: 'mcp_call', arguments: '{}', output: 'secret' }] }],
])('of a response, %s is looked through', (_what, body) => {
  expect(said('responses', body)).toContain('secret');
});

test('bytes of images and files are not text', () => {
  const content = [{ type: 'input_image', image_url: 'data:image/png;base64,secret' }];
  expect(said('responses', { input: [{ role: 'user', content }] })).not.toContain('secret');
  expect(said('responses', { input: [{ type: 'image_generation_call', result: 'secret' }] })).not.toContain('secret');
});
