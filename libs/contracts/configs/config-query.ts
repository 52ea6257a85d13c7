import { RE2JS } from 're2js';
import { z } from 'zod';
import type { Breach } from '../calls/describe-issue.ts';
import { parseParamPath } from '../param-path.ts';
import { addBreach } from '../scalars.ts';

export const comparisons = ['$eq', '$ne', '$gt', '$gte', '$lt', '$lte', '$in', '$nin', '$regex'] as const;
export type Comparison = (typeof comparisons)[number];

export type Scalar = string | number | boolean | null;

/** A condition as users write it: all fields, `$and` and `$or` of one object must match. */
export type Query = { [field: string]: unknown };

const depthMax = 8;
const comparisonsMax = 200;
const listMax = 1_000;
const patternLengthMax = 1_000;

const isScalar = (value: unknown): value is Scalar =>
  value === null || typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean';

/**
 * Whether a text names a field that a condition or a sticky hash can use: `metadata.*` of the call, `params.*` of its
 * body at any depth, or its path.
 */
export function isQueryField(field: string): boolean {
  if (field === 'url.pathname') return true;
  // Names of metadata are free text; they are compared whole.
  if (field.startsWith('metadata.')) return field.length > 'metadata.'.length;
  return field.startsWith('params.') && parseParamPath(field) !== null;
}

/** A whole query is checked when a config is parsed, so that no call fails because of an unknown operator. */
export const QueryInput = z.looseObject({}).check((context) => {
  const state = { comparisons: 0 };
  const breach = judgeQuery(context.value, [], 0, state);
  if (breach !== null) addBreach(context, breach);
});

const bad = (path: PropertyKey[], what: string): Breach => ({
  path,
  code: 'invalid_value',
  text: (name) => `Invalid ${name()}: ${what}`,
});

function judgeQuery(query: unknown, path: PropertyKey[], depth: number, state: { comparisons: number }): Breach | null {
  if (typeof query !== 'object' || query === null || Array.isArray(query)) {
    return bad(path, 'expected an object like {"metadata.plan": {"$eq": "pro"}}.');
  }
  if (depth > depthMax) return bad(path, `conditions can be nested at most ${depthMax} levels deep.`);
  const fields = Object.entries(query);
  if (fields.length === 0) return bad(path, 'expected at least one condition.');
  for (const [field, wanted] of fields) {
    const breach = judgeField(field, wanted, [...path, field], depth, state);
    if (breach !== null) return breach;
  }
  return null;
}

function judgeField(
  field: string,
  wanted: unknown,
  path: PropertyKey[],
  depth: number,
  state: { comparisons: number },
): Breach | null {
  if (field === '$and' || field === '$or') {
    if (!Array.isArray(wanted) || wanted.length === 0) return bad(path, 'expected a list of at least one condition.');
    for (const [index, part] of wanted.entries()) {
      const breach = judgeQuery(part, [...path, index], depth + 1, state);
      if (breach !== null) return breach;
    }
    return null;
  }
  if (field.startsWith('$')) return bad(path, `unknown operator. Supported operators are $and and $or.`);
  if (!isQueryField(field)) {
    return bad(path, "unknown path. Use 'metadata.<key>', 'params.<path>' or 'url.pathname'.");
  }
  const operators = isScalar(wanted) ? [['$eq', wanted] as const] : Object.entries(wanted as object);
  if (Array.isArray(wanted) || operators.length === 0) {
    return bad(path, 'expected a value, or an object of operators like {"$eq": "pro"}.');
  }
  state.comparisons += operators.length;
  if (state.comparisons > comparisonsMax) return bad(path, `a query can have at most ${comparisonsMax} comparisons.`);
  for (const [operator, operand] of operators) {
    const breach = judgeComparison(operator, operand, isScalar(wanted) ? path : [...path, operator]);
    if (breach !== null) return breach;
  }
  return null;
}

function judgeComparison(operator: string, operand: unknown, path: PropertyKey[]): Breach | null {
  switch (operator) {
    case '$eq':
    case '$ne':
      return isScalar(operand) ? null : bad(path, 'expected a string, number, boolean or null.');
    case '$gt':
    case '$gte':
    case '$lt':
    case '$lte':
      return typeof operand === 'string' || typeof operand === 'number'
        ? null
        : bad(path, 'expected a number or a string.');
    case '$in':
    case '$nin':
      return Array.isArray(operand) && operand.length > 0 && operand.length <= listMax && operand.every(isScalar)
        ? null
        : bad(path, `expected a list of 1 to ${listMax} strings, numbers, booleans or nulls.`);
    case '$regex':
      return judgePattern(operand, path);
    default:
      return bad(path, `unknown operator. Supported operators are ${comparisons.join(', ')}.`);
  }
}

function judgePattern(pattern: unknown, path: PropertyKey[]): Breach | null {
  if (typeof pattern !== 'string' || pattern.length > patternLengthMax) {
    return bad(path, `expected a regular expression of at most ${patternLengthMax} characters.`);
  }
  try {
    RE2JS.compile(pattern);
    return null;
  } catch {
    return bad(path, 'expected a regular expression in RE2 syntax, which has no lookaround and no backreferences.');
  }
}
