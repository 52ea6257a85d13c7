import type { Comparison, Query, Scalar } from '#libs/contracts/configs/config-query.ts';
import { parseParamPath, type PathStep } from '#libs/contracts/param-path.ts';
import type { PatternSearch, PlanCall, Predicate } from './plan.ts';

/**
 * Returns the predicate of a query that `QueryInput` accepted. All fields of one object must match, including `$and`
 * and `$or`. The predicate is given `search`, which looks for regular expressions.
 */
export function compileQuery(query: Query): Predicate {
  const parts = Object.entries(query).map(([field, wanted]): Predicate => {
    if (field === '$and' || field === '$or') return untilOne((wanted as Query[]).map(compileQuery), field === '$or');
    const read = compileField(field);
    const tests = isOperators(wanted) ? Object.entries(wanted) : [['$eq', wanted] as const];
    return untilOne(
      tests.map(([operator, operand]): Predicate => {
        const compare = compileComparison(operator as Comparison, operand);
        return (call, search) => compare(read(call), search);
      }),
      false,
    );
  });
  return untilOne(parts, false);
}

/**
 * Evaluates the conditions in order until one returns `last`, which is then the result: `false` for "and", `true` for
 * "or".
 */
function untilOne(predicates: readonly Predicate[], last: boolean): Predicate {
  const ask = (call: PlanCall, search: PatternSearch, from: number): boolean | Promise<boolean> => {
    for (const [index, predicate] of predicates.entries()) {
      if (index < from) continue;
      const answer = predicate(call, search);
      if (answer instanceof Promise)
        return answer.then((found) => (found === last ? last : ask(call, search, index + 1)));
      if (answer === last) return last;
    }
    return !last;
  };
  return (call, search) => ask(call, search, 0);
}

const isOperators = (wanted: unknown): wanted is Record<string, unknown> =>
  typeof wanted === 'object' && wanted !== null;

/** The value of a field in a call; undefined when the call does not have it. */
export function compileField(field: string): (call: PlanCall) => unknown {
  if (field === 'url.pathname') return (call) => call.pathname;
  if (field.startsWith('metadata.')) {
    const key = field.slice('metadata.'.length);
    return ({ metadata }) => (metadata !== null && Object.hasOwn(metadata, key) ? metadata[key] : undefined);
  }
  const steps = (parseParamPath(field) ?? []).slice(1);
  return (call) => valueAt(call.params, steps);
}

/** A `*` step matches nothing, because a comparison needs a single value. A numeric member also indexes a list. */
function valueAt(value: unknown, steps: readonly PathStep[]): unknown {
  let current = value;
  for (const step of steps) {
    if (typeof current !== 'object' || current === null) return undefined;
    if (step === '*' || !Object.hasOwn(current, step)) return undefined;
    current = (current as Record<PathStep, unknown>)[step];
  }
  return current;
}

type Compare = (value: unknown, search: PatternSearch) => boolean | Promise<boolean>;

function compileComparison(operator: Comparison, operand: unknown): Compare {
  switch (operator) {
    case '$eq':
      return (value) => equals(value, operand as Scalar);
    case '$ne':
      return (value) => !equals(value, operand as Scalar);
    case '$in':
      return (value) => (operand as Scalar[]).some((one) => equals(value, one));
    case '$nin':
      return (value) => !(operand as Scalar[]).some((one) => equals(value, one));
    case '$gt':
      return ordered(operand, (order) => order > 0);
    case '$gte':
      return ordered(operand, (order) => order >= 0);
    case '$lt':
      return ordered(operand, (order) => order < 0);
    case '$lte':
      return ordered(operand, (order) => order <= 0);
    case '$regex':
      return (value, search) => typeof value === 'string' && search(operand as string, value);
  }
}

/** Metadata values are texts, so a number or boolean in a query also matches its text. */
function equals(value: unknown, operand: Scalar): boolean {
  if (value === operand) return true;
  return typeof value === 'string' && (typeof operand === 'number' || typeof operand === 'boolean')
    ? value === String(operand)
    : false;
}

/**
 * Numbers, and texts that are numbers, are compared as numbers, other texts by their characters. Other values have no
 * order.
 */
function ordered(operand: unknown, holds: (order: number) => boolean): (value: unknown) => boolean {
  const wanted = toNumber(operand);
  return (value) => {
    const number = toNumber(value);
    if (number !== null && wanted !== null) return holds(number - wanted);
    if (typeof value !== 'string' || typeof operand !== 'string') return false;
    return holds(value < operand ? -1 : value > operand ? 1 : 0);
  };
}

function toNumber(value: unknown): number | null {
  if (typeof value === 'number') return value;
  return typeof value === 'string' && /^-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/.test(value) ? Number(value) : null;
}
