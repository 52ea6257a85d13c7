import { describe, expect, test } from 'vitest';
import { toGeminiSchema } from './schema.ts';

const convert = (schema: Record<string, unknown>) => toGeminiSchema(schema, 'schema');
const refused = expect.objectContaining({ kind: 'invalid_request', code: 'invalid_schema', param: 'schema' });
const property = (schema: unknown): unknown =>
  (convert({ type: 'object', properties: { a: schema } }).schema['properties'] as { a: unknown }).a;

describe('Gemini’s own form', () => {
  test('has what Gemini supports, with references resolved and the order of properties given', () => {
    const schema = {
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      type: 'object',
      additionalProperties: false,
      properties: {
        reason: { type: 'string', description: 'Why', maxLength: 100 },
        at: { $ref: '#/$defs/place', description: 'Where' },
        tags: { type: 'array', items: { type: 'string', enum: ['x', 'y'] }, minItems: 1 },
      },
      required: ['reason', 'at'],
      $defs: { place: { type: 'object', properties: { 'lat/lon': { type: 'number' } }, required: ['lat/lon'] } },
    };
    expect(convert(schema)).toEqual({
      form: 'openapi',
      lost: [],
      schema: {
        type: 'OBJECT',
        properties: {
          reason: { type: 'STRING', description: 'Why', maxLength: 100 },
          at: {
            type: 'OBJECT',
            description: 'Where',
            properties: { 'lat/lon': { type: 'NUMBER' } },
            required: ['lat/lon'],
          },
          tags: { type: 'ARRAY', items: { type: 'STRING', enum: ['x', 'y'] }, minItems: 1 },
        },
        required: ['reason', 'at'],
        propertyOrdering: ['reason', 'at', 'tags'],
      },
    });
  });

  test.each([
    [{ type: ['string', 'null'] }, { type: 'STRING', nullable: true }],
    [{ anyOf: [{ type: 'integer' }, { type: 'null' }] }, { type: 'INTEGER', nullable: true }],
    [
      { anyOf: [{ type: 'integer' }, { type: 'null' }], description: 'd' },
      { type: 'INTEGER', nullable: true, description: 'd' },
    ],
    [
      { oneOf: [{ type: 'string' }, { type: 'number' }, { type: 'null' }] },
      { nullable: true, anyOf: [{ type: 'STRING' }, { type: 'NUMBER' }] },
    ],
    [
      { type: ['string', 'number'], title: 't' },
      { title: 't', anyOf: [{ type: 'STRING' }, { type: 'NUMBER' }] },
    ],
    [
      { type: 'string', enum: ['a', null] },
      { type: 'STRING', enum: ['a'], nullable: true },
    ],
    [{ const: 'fixed' }, { type: 'STRING', enum: ['fixed'] }],
    [{ type: 'null' }, { type: 'NULL', nullable: true }],
    [
      { type: 'string', format: 'date-time' },
      { type: 'STRING', format: 'date-time' },
    ],
    [
      {
        allOf: [{ properties: { x: { type: 'string' } }, required: ['x'] }, { properties: { y: { type: 'number' } } }],
      },
      {
        type: 'OBJECT',
        properties: { x: { type: 'STRING' }, y: { type: 'NUMBER' } },
        required: ['x'],
        propertyOrdering: ['x', 'y'],
      },
    ],
    [
      { type: 'object', properties: { k: { type: 'string' } }, anyOf: [{ properties: { v: { type: 'number' } } }] },
      { type: 'OBJECT', properties: { k: { type: 'STRING' }, v: { type: 'NUMBER' } }, propertyOrdering: ['k', 'v'] },
    ],
  ])('%j', (schema, wanted) => {
    expect(property(schema)).toEqual(wanted);
  });

  test('lost restrictions are reported, and lost annotations are not', () => {
    expect(convert({ type: 'number', exclusiveMinimum: 0, examples: [1], 'x-ours': 1 })).toMatchObject({
      schema: { type: 'NUMBER' },
      lost: ['exclusiveMinimum'],
    });
    expect(convert({ type: 'string', format: 'email' })).toMatchObject({
      schema: { type: 'STRING' },
      lost: ['format'],
    });
    expect(convert({ type: 'integer', enum: [1, 2], description: 'Level.' })).toEqual({
      form: 'openapi',
      schema: { type: 'INTEGER', description: 'Level. One of: 1, 2.' },
      lost: ['enum'],
    });
    expect(
      convert({ type: 'object', properties: { a: { type: 'string' } }, anyOf: [{ required: ['a'] }] }),
    ).toMatchObject({ form: 'openapi', lost: ['anyOf'] });
  });
});

describe('the JSON Schema form', () => {
  test.each([
    [
      'recursive',
      { $ref: '#/definitions/n', definitions: { n: { properties: { next: { $ref: '#/definitions/n' } } } } },
    ],
    ['recursive by the root', { properties: { next: { $ref: '#' } } }],
    ['recursive by allOf', { allOf: [{ $ref: '#' }] }],
    ['a map', { type: 'object', additionalProperties: { type: 'number' } }],
    ['a tuple', { type: 'array', prefixItems: [{ type: 'string' }] }],
    ['a free object', { type: 'object' }],
    ['anything', { properties: { a: {} } }],
    ['a list of anything', { type: 'array' }],
  ])('is used for what is %s', (_name, schema) => {
    expect(convert(schema).form).toBe('json');
  });

  test('keeps references and what Gemini supports; the rest is reported', () => {
    const node = { type: 'object', properties: { next: { $ref: '#/definitions/n' }, s: { const: 1, pattern: 'x' } } };
    expect(convert({ $schema: 's', $ref: '#/definitions/n', definitions: { n: node } })).toEqual({
      form: 'json',
      schema: {
        $ref: '#/$defs/n',
        $defs: { n: { type: 'object', properties: { next: { $ref: '#/$defs/n' }, s: { enum: [1] } } } },
      },
      lost: ['pattern'],
    });
  });

  test('is used before references make a schema grow without end', () => {
    const levels = Array.from({ length: 30 }, (_, level) => [
      `l${level}`,
      { type: 'object', properties: { a: { $ref: `#/$defs/l${level + 1}` }, b: { $ref: `#/$defs/l${level + 1}` } } },
    ]);
    const $defs = { ...(Object.fromEntries(levels) as object), l30: { type: 'string' } };
    const { form, schema } = convert({ $ref: '#/$defs/l0', $defs });
    expect(form).toBe('json');
    expect(JSON.stringify(schema).length).toBeLessThan(10_000);
  });
});

test.each(['https://169.254.169.254/schema', 'other.json#/a', '#/$defs/missing', '#/__proto__', '#/constructor/name'])(
  'a reference that leads out or nowhere is refused: %s',
  ($ref) => {
    expect(() => convert({ type: 'object', properties: { a: { $ref } } })).toThrow(refused);
  },
);

test('a reference that leads out is refused in the JSON Schema form, too', () => {
  expect(() => convert({ properties: { any: {}, a: { $ref: 'https://169.254.169.254/schema' } } })).toThrow(refused);
});
