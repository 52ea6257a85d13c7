import { expect, test } from 'vitest';
import { readable, toMessages, variablesOf } from './prompt-text.ts';

test('a list of plain messages is edited as messages; anything else as it is stored', () => {
  const messages = [{ role: 'user', content: 'Hello {{name}}' }];
  expect(toMessages(JSON.stringify(messages))).toEqual(messages);
  for (const other of ['Hello', '[]', '{}', '[{"role":"user"}]', '[{"role":"user","content":[{"type":"text"}]}]', '[1'])
    expect(toMessages(other)).toBeNull();
});

test('variables are named once, sections and parts of objects by their first name, and partials are none', () => {
  const template =
    '{{a}} {{ b.c }} {{#list}}{{.}}{{/list}} {{^none}}{{/none}} {{>partial}} {{! comment }} {{a}} {{{raw}}}';
  expect(variablesOf(template)).toEqual(['a', 'b', 'list', 'none', 'raw']);
});

test('a template is compared as people read it', () => {
  expect(readable('[{"role":"user","content":"Hi\\nthere"}]')).toBe('[user]\nHi\nthere\n');
  expect(readable('Hi')).toBe('Hi');
});
