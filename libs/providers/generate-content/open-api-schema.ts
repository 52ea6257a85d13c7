import { GatewayError } from '#libs/kernel/errors.ts';
import { type Json, asText, toRecord, toRecords } from '../turns/json-value.ts';
import { readMember } from './member.ts';

const depthMax = 64;

/** Counts, which Google's clients write as text because they have 64 bits. */
const counts = ['minItems', 'maxItems', 'minLength', 'maxLength', 'minProperties', 'maxProperties'] as const;
const plain = ['title', 'description', 'pattern', 'minimum', 'maximum', 'default', 'enum'] as const;
/** Formats that JSON Schema has, too. They do not include those for numbers (`int64`, `double`). */
const formats: ReadonlySet<unknown> = new Set(['date-time', 'date', 'time', 'duration']);

/**
 * Google's `Schema`, a subset of OpenAPI 3.0 (ai.google.dev/api/caching#Schema), as JSON Schema. An object with named
 * properties allows no others, as Gemini never writes others. Throws invalid_request for a schema of more than 64 levels.
 */
export function toJsonSchema(schema: Json, param: string, depth = 0): Json {
  if (depth > depthMax) {
    const message = `Invalid '${param}': expected at most ${depthMax} levels.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param });
  }
  const inner = (value: unknown): Json => toJsonSchema(toRecord(value), param, depth + 1);
  const converted: Record<string, unknown> = {};
  const type = asText(schema['type'])?.toLowerCase();
  const isNullable = schema['nullable'] === true;
  if (type !== undefined && type !== 'type_unspecified') converted['type'] = isNullable ? [type, 'null'] : type;
  for (const name of plain) if (schema[name] !== undefined && schema[name] !== null) converted[name] = schema[name];
  if (isNullable && Array.isArray(converted['enum'])) converted['enum'] = [...(converted['enum'] as unknown[]), null];
  for (const name of counts) {
    const count = readMember(schema, name);
    if (count !== undefined) converted[name] = Number(count);
  }
  if (formats.has(schema['format'])) converted['format'] = schema['format'];
  if (schema['items'] !== undefined) converted['items'] = inner(schema['items']);
  const anyOf = readMember(schema, 'anyOf');
  if (Array.isArray(anyOf)) converted['anyOf'] = toRecords(anyOf).map(inner);
  const properties = Object.entries(toRecord(schema['properties']));
  if (properties.length > 0) {
    converted['properties'] = Object.fromEntries(properties.map(([name, value]) => [name, inner(value)]));
    converted['additionalProperties'] = false;
  }
  if (Array.isArray(schema['required'])) converted['required'] = schema['required'];
  return converted;
}
