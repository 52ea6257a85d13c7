import { type Json, toRecord, toRecords } from './json-value.ts';

/** Keywords that strict modes of other providers refuse. */
const openKeywords = ['oneOf', 'allOf', 'not', 'if', 'patternProperties', 'dependentSchemas', 'dependentRequired'];
/** Deeper schemas are not strict; OpenAI allows ten levels (platform.openai.com/docs, "Structured outputs"). */
const depthMax = 10;

/**
 * Whether every object of a schema requires all of its properties and allows no others, which the strict mode of OpenAI
 * requires (platform.openai.com/docs, "Structured outputs").
 */
export function isClosedSchema(schema: Json, depth = 0): boolean {
  if (depth > depthMax || openKeywords.some((name) => schema[name] !== undefined)) return false;
  const properties = toRecord(schema['properties']);
  const names = Object.keys(properties);
  const required = new Set(Array.isArray(schema['required']) ? schema['required'] : []);
  const isObject = schema['type'] === 'object' || names.length > 0;
  if (isObject && (schema['additionalProperties'] !== false || names.some((name) => !required.has(name)))) return false;
  const { items, anyOf, $defs, definitions } = schema;
  const inner = [properties, toRecord($defs), toRecord(definitions)].flatMap((named) => Object.values(named));
  return [...inner, ...toRecords(anyOf), ...(items === undefined ? [] : [items])].every((each) =>
    isClosedSchema(toRecord(each), depth + 1),
  );
}
