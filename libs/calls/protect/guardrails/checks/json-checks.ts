import { Validator } from '@cfworker/json-schema';
import { LRUCache } from 'lru-cache';
import { guardrailLimits } from '#libs/contracts/configs/guardrail-checks.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/**
 * Returns the JSON value in a text: the text itself, the first fenced block, or the part from the first brace to the
 * last. undefined when there is none.
 */
export function extractJson(text: string): unknown {
  const trimmed = text.trim();
  const candidates = [
    () => trimmed,
    () => fenced(trimmed),
    () => between(trimmed, '{', '}'),
    () => between(trimmed, '[', ']'),
  ];
  for (const candidate of candidates) {
    const value = parse(candidate());
    if (value !== undefined) return value;
  }
  return undefined;
}

function parse(text: string): unknown {
  if (text === '') return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function fenced(text: string): string {
  const start = text.indexOf('```');
  const lineEnd = start === -1 ? -1 : text.indexOf('\n', start);
  const end = lineEnd === -1 ? -1 : text.indexOf('```', lineEnd);
  return end === -1 ? '' : text.slice(lineEnd, end).trim();
}

const between = (text: string, open: string, close: string): string =>
  text.slice(Math.max(0, text.indexOf(open)), text.lastIndexOf(close) + 1);

// Cached by the JSON text of the schema, because a config that comes with each call is parsed to a new object each
// time.
const compiled = new LRUCache<string, Validator>({ max: 200 });

/**
 * Compiles a tenant's JSON Schema. The returned function reports whether a value is valid, or `too_deep` for one that
 * nests deeper than the stack allows. A schema can be made to take very long (`allOf` of references that doubles at
 * each step), so the caller must limit the time. Throws invalid_request when the schema is too large or too deep,
 * refers to another document, or contains regular expressions, which would not run in linear time here.
 */
export function compileSchema(schema: object): (value: unknown) => boolean | 'too_deep' {
  const text = JSON.stringify(schema);
  const validator = compiled.get(text) ?? makeValidator(schema, text);
  compiled.set(text, validator);
  return (value) => {
    try {
      return validator.validate(value).valid;
    } catch (error) {
      // A model's text can nest deeper than the stack allows.
      if (error instanceof RangeError) return 'too_deep';
      throw error;
    }
  };
}

function makeValidator(schema: object, text: string): Validator {
  if (Buffer.byteLength(text) > guardrailLimits.schemaBytesMax) {
    throw refused(`is larger than ${guardrailLimits.schemaBytesMax} bytes of JSON`);
  }
  assertPlain(schema, 1);
  try {
    return new Validator(schema, '2020-12');
  } catch (cause) {
    throw refused(`cannot be used: ${cause instanceof Error ? cause.message.slice(0, 200) : 'it is malformed'}`, cause);
  }
}

// Members whose own members are values or names instead of keywords.
const named: ReadonlySet<string> = new Set(['properties', '$defs', 'definitions', 'dependentSchemas']);
const literal: ReadonlySet<string> = new Set(['const', 'enum', 'default', 'examples']);

function assertPlain(node: unknown, depth: number, isKeywords = true): void {
  if (typeof node !== 'object' || node === null) return;
  if (depth > guardrailLimits.schemaDepthMax)
    throw refused(`is nested more than ${guardrailLimits.schemaDepthMax} levels deep`);
  for (const [member, value] of Object.entries(node)) {
    if (isKeywords && !Array.isArray(node)) {
      if (member === 'pattern' || member === 'patternProperties') {
        throw refused(`uses "${member}", which is not supported. Use a regexMatch check instead`);
      }
      if (member === '$dynamicRef' || member === '$recursiveRef' || member === '$id') throw refused(`has "${member}"`);
      if (member === '$ref' && !(typeof value === 'string' && value.startsWith('#'))) {
        throw refused('has a "$ref" to another document. Copy the definition into its own "$defs"');
      }
      if (literal.has(member)) continue;
    }
    assertPlain(value, depth + 1, Array.isArray(node) || !isKeywords || !named.has(member));
  }
}

const refused = (why: string, cause?: unknown): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `The schema of a jsonSchema check ${why}.`, {
    param: 'schema',
    cause,
  });

/** Counts how many of the keys a JSON value has. A key with dots is a path. */
export function countKeys(value: unknown, keys: readonly string[]): number {
  return keys.filter((key) => hasKey(value, key) || hasPath(value, key.split('.'))).length;
}

const hasKey = (value: unknown, key: string): boolean =>
  typeof value === 'object' && value !== null && Object.hasOwn(value, key);

function hasPath(value: unknown, path: readonly string[]): boolean {
  let current = value;
  for (const key of path) {
    if (!hasKey(current, key)) return false;
    current = (current as Record<string, unknown>)[key];
  }
  return true;
}
