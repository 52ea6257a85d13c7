import { json } from '@codemirror/lang-json';
import { EditorState } from '@codemirror/state';
import { expect, test } from 'vitest';
import { completeJson, type JsonSchema } from './complete-json.ts';

const schema: JsonSchema = {
  $ref: '#/$defs/node',
  $defs: {
    node: {
      type: 'object',
      properties: {
        strategy: {
          type: 'object',
          properties: { mode: { enum: ['single', 'fallback'] }, on: { type: 'array', items: { enum: [429, 500] } } },
        },
        virtual_key: { type: 'string', description: 'the slug of a virtual key' },
        strict: { type: 'boolean' },
        targets: { type: 'array', items: { $ref: '#/$defs/node' } },
      },
    },
  },
};

/** The completions that are offered at the `|` of a text. */
function offered(text: string): string[] | null {
  const pos = text.indexOf('|');
  const state = EditorState.create({ doc: text.replace('|', ''), extensions: [json()] });
  const found = completeJson({ state, pos, explicit: true }, schema, { virtual_key: ['main', 'spare'] });
  return found === null ? null : found.options.map(({ label }) => label);
}

test('names of members that are not there yet are offered, at any depth', () => {
  expect(offered('{|}')).toEqual(['"strategy"', '"virtual_key"', '"strict"', '"targets"']);
  expect(offered('{"strict": true, "st|"}')).toEqual(['"strategy"', '"virtual_key"', '"targets"']);
  expect(offered('{"targets": [{"strategy": {"|"}}]}')).toEqual(['"mode"', '"on"']);
  expect(offered('{"targets": [{"targets": [{"virtual_key": "main", |}]}]}')).toEqual([
    '"strategy"',
    '"strict"',
    '"targets"',
  ]);
});

test('values are offered where the schema or the workspace knows them', () => {
  expect(offered('{"strategy": {"mode": |}}')).toEqual(['"single"', '"fallback"']);
  expect(offered('{"strategy": {"mode": "f|"}}')).toEqual(['"single"', '"fallback"']);
  expect(offered('{"strategy": {"on": [|]}}')).toEqual(['429', '500']);
  expect(offered('{"strict": |}')).toEqual(['true', 'false']);
  expect(offered('{"targets": [{"virtual_key": "|"}]}')).toEqual(['"main"', '"spare"']);
});

test('nothing is offered where nothing is known', () => {
  expect(offered('|')).toBeNull();
  expect(offered('{"unknown": {"|"}}')).toBeNull();
  expect(offered('{"unknown": |}')).toBeNull();
});
