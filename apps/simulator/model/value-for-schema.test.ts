import { Ajv } from 'ajv';
import { expect, test } from 'vitest';
import { createRandom } from './hash.ts';
import { valueForSchema } from './value-for-schema.ts';

const person = {
  type: 'object',
  properties: {
    name: { type: 'string', minLength: 3, maxLength: 12 },
    age: { type: 'integer', minimum: 18, maximum: 30 },
    score: { type: 'number', exclusiveMinimum: 0, maximum: 1 },
    mood: { enum: ['calm', 'glad'] },
    active: { type: 'boolean' },
    nothing: { type: 'null' },
    kind: { const: 'person' },
    tags: { type: 'array', items: { type: 'string' }, minItems: 2, maxItems: 4 },
    nick: { type: ['string', 'null'] },
    step: { type: 'integer', minimum: 10, maximum: 90, multipleOf: 5 },
    parent: { anyOf: [{ $ref: '#/$defs/parent' }, { type: 'null' }] },
    both: {
      allOf: [
        { type: 'object', properties: { a: { type: 'string' } }, required: ['a'] },
        { properties: { b: { type: 'integer' } }, required: ['b'] },
      ],
    },
  },
  required: ['name', 'age', 'score', 'mood', 'active', 'nothing', 'kind', 'tags', 'nick', 'step', 'parent', 'both'],
  additionalProperties: false,
  $defs: { parent: { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] } },
};

test('values satisfy the schema they are made for, and differ from seed to seed', () => {
  const validate = new Ajv({ strict: false }).compile(person);
  const seen = new Set<string>();
  for (let seed = 0; seed < 200; seed++) {
    const value = valueForSchema(person, createRandom(seed));
    validate(value);
    expect({ value, errors: validate.errors }).toEqual({ value, errors: null });
    seen.add(JSON.stringify(value));
  }
  expect(seen.size).toBeGreaterThan(100);
});

test('a schema that refers to itself without end gives a finite value', () => {
  const tree = {
    type: 'object',
    properties: { child: { $ref: '#' }, left: { $ref: '#' } },
    required: ['child', 'left'],
  };
  expect(JSON.stringify(valueForSchema(tree, createRandom(1))).length).toBeLessThan(1_000_000);
  expect(valueForSchema({ $ref: '#' }, createRandom(1))).toBeTypeOf('string');
  const all = { allOf: Array.from({ length: 20 }, () => ({ $ref: '#' })) };
  expect(() => valueForSchema(all, createRandom(1))).not.toThrow();
});
