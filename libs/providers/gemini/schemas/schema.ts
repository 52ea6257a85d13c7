import { checkReference, filterJsonSchema, narrowing, refuseReference } from './json-schema.ts';
import { type Json, toRecord } from '../../turns/json-value.ts';

/**
 * A JSON schema in one of Gemini's two forms: its own `Schema` (a subset of OpenAPI 3.0) or, if that is not enough, a
 * subset of JSON Schema (`responseJsonSchema`, `parametersJsonSchema`; Gemini 2.5 and later). `lost` lists the
 * restrictions that were left out.
 */
type GeminiSchema = { form: 'openapi' | 'json'; schema: Json; lost: readonly string[] };

// A small schema can refer to itself many times at each level. Beyond this many nodes, references are not resolved. The
// limit also protects the stack, because references are resolved by recursion.
const nodesMax = 2_000;

/** Thrown and caught in this file: the schema needs the other form. */
class NeedsJsonSchema extends Error {}

/**
 * Converts a schema: references are resolved, `anyOf` with null becomes `nullable`, and keywords that Gemini rejects
 * are left out. Recursive schemas, maps (`additionalProperties` with a schema), tuples and objects without named
 * properties stay in the JSON Schema form. Throws invalid_request, naming the param, for a reference that cannot be
 * resolved in the schema.
 */
export function toGeminiSchema(schema: Json, param: string): GeminiSchema {
  const lost = new Set<string>();
  try {
    const converted = createConverter(schema, param, lost)(schema, []);
    return { form: 'openapi', schema: converted, lost: [...lost] };
  } catch (error) {
    if (!(error instanceof NeedsJsonSchema)) throw error;
    return { form: 'json', ...filterJsonSchema(schema, param) };
  }
}

// ai.google.dev/api/caching#Schema: the supported keywords, in addition to those that are converted below.
const kept = new Set([
  'title',
  'description',
  'minItems',
  'maxItems',
  'minProperties',
  'maxProperties',
  'minLength',
  'maxLength',
  'pattern',
  'minimum',
  'maximum',
  'default',
  'nullable',
]);
const converted = new Set([
  '$ref',
  'type',
  'format',
  'enum',
  'const',
  'items',
  'properties',
  'required',
  'anyOf',
  'oneOf',
  'allOf',
]);
/** All others are rejected with 400. */
const formats: Readonly<Record<string, readonly string[]>> = {
  STRING: ['date-time', 'enum'],
  NUMBER: ['float', 'double'],
  INTEGER: ['int32', 'int64'],
};

function createConverter(root: Json, param: string, lost: Set<string>) {
  let nodes = 0;

  const count = (): void => {
    nodes += 1;
    if (nodes > nodesMax) throw new NeedsJsonSchema();
  };

  const follow = (node: Json, trail: readonly string[]): [Json, readonly string[]] => {
    count();
    const reference = node['$ref'];
    if (typeof reference !== 'string') return [node, trail];
    if (trail.includes(reference)) throw new NeedsJsonSchema();
    const { $ref: _reference, ...beside } = node;
    return follow({ ...resolvePointer(root, reference, param), ...beside }, [...trail, reference]);
  };

  const convert = (given: Json, before: readonly string[]): Json => {
    const [followed, trail] = follow(given, before);
    const node = mergeAll(followed, (part) => follow(part, trail)[0]);
    const out: Record<string, unknown> = {};
    for (const [name, value] of Object.entries(node)) {
      if (kept.has(name)) out[name] = value;
      else if (name === 'prefixItems') throw new NeedsJsonSchema();
      else if (narrowing.has(name) && !converted.has(name)) lost.add(name);
    }
    const options = [...listOf(node['anyOf']), ...listOf(node['oneOf'])];
    const types = typeof node['type'] === 'string' ? [node['type']] : listOf(node['type']).map(String);
    const isNullable = types.includes('null') || options.some(isNullType) || out['nullable'] === true;
    if (isNullable) out['nullable'] = true;
    const real = types.filter((type) => type !== 'null');
    const around = { type: node['type'], properties: node['properties'], required: node['required'] };
    const choices = options
      .filter((option) => !isNullType(option))
      .map((option) => (node['properties'] === undefined ? toRecord(option) : { allOf: [defined(around), option] }));
    const [only] = choices;
    if (real.length > 0 && choices.length > 0 && !options.some(isWhole)) {
      // The alternatives have only constraints ("one of these two is required"), so the schema around them counts.
      lost.add('anyOf');
      return { ...out, ...typed(node, real, trail) };
    }
    if (only !== undefined && choices.length === 1) return { ...convert(only, trail), ...out };
    if (choices.length > 1) return { ...out, anyOf: choices.map((choice) => convert(choice, trail)) };
    if (real.length > 1) {
      const { anyOf: _anyOf, oneOf: _oneOf, title: _title, description: _description, ...rest } = node;
      const { title, description, nullable } = out;
      const each = real.map((type) => convert({ ...rest, type }, trail));
      return { ...defined({ title, description, nullable }), anyOf: each };
    }
    return { ...out, ...typed(node, types, trail) };
  };

  const typed = (node: Json, types: readonly string[], trail: readonly string[]): Json => {
    const type = (types.find((name) => name !== 'null') ?? guessType(node) ?? types[0])?.toUpperCase();
    // Gemini's own form cannot express "anything".
    if (type === undefined) throw new NeedsJsonSchema();
    const out: Record<string, unknown> = { type };
    if (typeof node['format'] === 'string') {
      if (formats[type]?.includes(node['format'])) out['format'] = node['format'];
      else lost.add('format');
    }
    if (type === 'ARRAY') {
      if (node['items'] === undefined || typeof node['items'] === 'boolean') throw new NeedsJsonSchema();
      out['items'] = convert(toRecord(node['items']), trail);
    }
    if (type === 'OBJECT') Object.assign(out, objectOf(node, trail));
    return { ...out, ...enumOf(node, type) };
  };

  const objectOf = (node: Json, trail: readonly string[]): Json => {
    const properties = Object.entries(toRecord(node['properties']));
    const more = node['additionalProperties'];
    if (properties.length === 0 || Object.keys(toRecord(more)).length > 0) throw new NeedsJsonSchema();
    const required = listOf(node['required']);
    return {
      properties: Object.fromEntries(properties.map(([name, value]) => [name, convert(toRecord(value), trail)])),
      ...(required.length > 0 ? { required } : {}),
      // Without it Gemini sorts the properties by name, so that an answer's reasoning could follow its verdict.
      ...(properties.length > 1 ? { propertyOrdering: properties.map(([name]) => name) } : {}),
    };
  };

  const enumOf = (node: Json, type: string): Json => {
    const values = node['const'] === undefined ? listOf(node['enum']) : [node['const']];
    if (values.length === 0) return {};
    const texts = values.filter((value) => value !== null);
    if (type === 'STRING' && texts.every((value) => typeof value === 'string')) {
      return { enum: texts, ...(texts.length < values.length ? { nullable: true } : {}) };
    }
    // Gemini accepts it only for strings, so it is added to the description.
    const sentence = `One of: ${values.map((value) => JSON.stringify(value)).join(', ')}.`;
    const { description } = node;
    lost.add('enum');
    return { description: typeof description === 'string' ? `${description} ${sentence}` : sentence };
  };

  return convert;
}

/** Merges `allOf`: properties and required are united; for everything else the last one counts. */
function mergeAll(node: Json, follow: (part: Json) => Json): Json {
  if (!Array.isArray(node['allOf'])) return node;
  const { allOf, ...rest } = node;
  const parts = [...listOf(allOf).map((part) => mergeAll(follow(toRecord(part)), follow)), rest];
  const properties = Object.assign({}, ...parts.map((part) => toRecord(part['properties']))) as Json;
  const required = [...new Set(parts.flatMap((part) => listOf(part['required'])))];
  return {
    ...(Object.assign({}, ...parts) as Json),
    ...(Object.keys(properties).length > 0 ? { properties } : {}),
    ...(required.length > 0 ? { required } : {}),
  };
}

function resolvePointer(root: Json, reference: string, param: string): Json {
  checkReference(reference, param);
  let found: unknown = root;
  for (const step of reference.split('/').slice(1)) {
    const name = decodeStep(step);
    const inside = typeof found === 'object' && found !== null && Object.hasOwn(found, name);
    found = inside ? (found as Json)[name] : refuseReference(reference, param, 'does not exist in the schema');
  }
  return toRecord(found);
}

function decodeStep(step: string): string {
  try {
    return decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~');
  } catch {
    return step;
  }
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
const isWhole = (option: unknown): boolean =>
  ['type', '$ref', 'properties', 'enum', 'const', 'allOf'].some((name) => name in toRecord(option));
const isNullType = (option: unknown): boolean => toRecord(option)['type'] === 'null';
const defined = (members: Json): Json =>
  Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));

function guessType(node: Json): string | undefined {
  if (node['properties'] !== undefined) return 'object';
  if (node['items'] !== undefined) return 'array';
  const example = node['const'] ?? listOf(node['enum'])[0];
  return typeof example === 'string' || typeof example === 'boolean' || typeof example === 'number'
    ? typeof example
    : undefined;
}
