import { toRecord, type Json } from '../json-value.ts';

// ai.google.dev/api/generate-content#GenerationConfig, responseJsonSchema: what it supports.
const plain = new Set([
  '$id',
  '$anchor',
  'type',
  'format',
  'title',
  'description',
  'enum',
  'minItems',
  'maxItems',
  'minimum',
  'maximum',
  'required',
  'propertyOrdering',
]);
const ofSchema = new Set(['items', 'additionalProperties']);
const ofSchemas = new Set(['prefixItems', 'anyOf', 'oneOf']);
const ofNamedSchemas = new Set(['properties', '$defs', 'definitions']);
const silent = new Set([
  '$schema',
  '$comment',
  'default',
  'examples',
  'example',
  'deprecated',
  'readOnly',
  'writeOnly',
  'strict',
]);

/** The schema with only the keywords that Gemini supports in its JSON Schema form, references kept. */
export function filterJsonSchema(schema: Json): { schema: Json; lost: readonly string[] } {
  const lost = new Set<string>();

  const each = (value: unknown): unknown =>
    typeof value === 'object' && value !== null && !Array.isArray(value) ? filter(value as Json) : value;

  const member = (name: string, value: unknown): [string, unknown][] => {
    if (name === '$ref' && typeof value === 'string') return [[name, value.replace(/^#\/definitions\//, '#/$defs/')]];
    if (plain.has(name)) return [[name, value]];
    if (ofSchema.has(name)) return [[name, each(value)]];
    if (ofSchemas.has(name)) return [[name, Array.isArray(value) ? value.map(each) : value]];
    if (ofNamedSchemas.has(name)) {
      const named = Object.entries(toRecord(value)).map(([key, inner]) => [key, each(inner)]);
      return [[name === 'definitions' ? '$defs' : name, Object.fromEntries(named)]];
    }
    if (name === 'const') return [['enum', [value]]];
    if (!silent.has(name)) lost.add(name);
    return [];
  };

  const filter = (node: Json): Json =>
    Object.fromEntries(Object.entries(node).flatMap(([name, value]) => member(name, value)));

  return { schema: filter(schema), lost: [...lost] };
}
