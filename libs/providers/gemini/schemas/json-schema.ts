import { GatewayError } from '#libs/kernel/errors.ts';
import { type Json, toRecord } from '../../turns/json-value.ts';

// The supported keywords: ai.google.dev/api/generate-content#GenerationConfig, responseJsonSchema.
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
/**
 * JSON Schema's keywords that restrict values. Leaving one out loosens the schema and is reported; all others are
 * annotations. `additionalProperties: false` can be left out, because Gemini adds no properties.
 */
export const narrowing: ReadonlySet<string> = new Set([
  'const',
  'contains',
  'dependentRequired',
  'dependentSchemas',
  'else',
  'enum',
  'exclusiveMaximum',
  'exclusiveMinimum',
  'format',
  'if',
  'maxContains',
  'maxLength',
  'maxProperties',
  'minContains',
  'minLength',
  'minProperties',
  'multipleOf',
  'not',
  'pattern',
  'patternProperties',
  'propertyNames',
  'then',
  'unevaluatedItems',
  'unevaluatedProperties',
  'uniqueItems',
]);

/**
 * The schema with only the keywords that Gemini supports in its JSON Schema form, including references. Throws
 * invalid_request for a reference to a definition outside of the schema.
 */
export function filterJsonSchema(schema: Json, param: string): { schema: Json; lost: readonly string[] } {
  const lost = new Set<string>();

  const each = (value: unknown): unknown =>
    typeof value === 'object' && value !== null && !Array.isArray(value) ? filter(value as Json) : value;

  const member = (name: string, value: unknown): [string, unknown][] => {
    if (name === '$ref' && typeof value === 'string') {
      checkReference(value, param);
      return [[name, value.replace(/^#\/definitions\//, '#/$defs/')]];
    }
    if (plain.has(name)) return [[name, value]];
    if (ofSchema.has(name)) return [[name, each(value)]];
    if (ofSchemas.has(name)) return [[name, Array.isArray(value) ? value.map(each) : value]];
    if (ofNamedSchemas.has(name)) {
      const named = Object.entries(toRecord(value)).map(([key, inner]) => [key, each(inner)]);
      return [[name === 'definitions' ? '$defs' : name, Object.fromEntries(named)]];
    }
    if (name === 'const') return [['enum', [value]]];
    if (narrowing.has(name)) lost.add(name);
    return [];
  };

  const filter = (node: Json): Json =>
    Object.fromEntries(Object.entries(node).flatMap(([name, value]) => member(name, value)));

  return { schema: filter(schema), lost: [...lost] };
}

export function checkReference(reference: string, param: string): void {
  if (reference === '#' || reference.startsWith('#/')) return;
  refuseReference(reference, param, 'points outside the schema. Define it under $defs and write #/$defs/NAME');
}

export function refuseReference(reference: string, param: string, why: string): never {
  const message = `Invalid '${param}': its $ref ${JSON.stringify(reference.slice(0, 200))} ${why}.`;
  throw new GatewayError('invalid_request', 'invalid_schema', message, { param });
}
