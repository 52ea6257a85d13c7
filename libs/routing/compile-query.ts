import type { Comparison, Query, Scalar } from '#libs/contracts/config-query.ts';
import { parseParamPath, type PathStep } from '#libs/contracts/param-path.ts';
import { compilePattern } from '#libs/guardrails/patterns.ts';
import { createWorkBudget, type WorkBudget } from '#libs/guardrails/run-within.ts';
import type { PlanCall, Predicate } from './plan.ts';

// Of all the expressions that one call meets.
const budgets = new WeakMap<PlanCall, WorkBudget>();

function budgetOf(call: PlanCall): WorkBudget {
  let budget = budgets.get(call);
  if (!budget) {
    budget = createWorkBudget();
    budgets.set(call, budget);
  }
  return budget;
}

/**
 * A predicate from a query that `QueryInput` accepted. Fields beside each other all have to hold, `$and` and `$or` among
 * them. Regular expressions are RE2's: their time is linear in the text, whatever pattern a tenant writes, and all of
 * a call's together have the time of a `WorkBudget`.
 */
export function compileQuery(query: Query): Predicate {
  const parts = Object.entries(query).map(([field, wanted]): Predicate => {
    if (field === '$and' || field === '$or') {
      const branches = (wanted as Query[]).map(compileQuery);
      return field === '$and'
        ? (call) => branches.every((branch) => branch(call))
        : (call) => branches.some((branch) => branch(call));
    }
    const read = compileField(field);
    const tests = (isOperators(wanted) ? Object.entries(wanted) : [['$eq', wanted] as const]).map(
      ([operator, operand]) => compileComparison(operator as Comparison, operand),
    );
    return (call) => {
      const value = read(call);
      return tests.every((test) => test(value, call));
    };
  });
  return (call) => parts.every((part) => part(call));
}

const isOperators = (wanted: unknown): wanted is Record<string, unknown> =>
  typeof wanted === 'object' && wanted !== null;

/** What a field names in a call; undefined when the call has no such thing. */
export function compileField(field: string): (call: PlanCall) => unknown {
  if (field === 'url.pathname') return (call) => call.pathname;
  if (field.startsWith('metadata.')) {
    const key = field.slice('metadata.'.length);
    return ({ metadata }) => (metadata !== null && Object.hasOwn(metadata, key) ? metadata[key] : undefined);
  }
  const steps = (parseParamPath(field) ?? []).slice(1);
  return (call) => valueAt(call.params, steps);
}

/** A `*` step finds nothing: a comparison is about one value. A member named by digits is a place of a list, too. */
function valueAt(value: unknown, steps: readonly PathStep[]): unknown {
  let current = value;
  for (const step of steps) {
    if (typeof current !== 'object' || current === null) return undefined;
    if (step === '*' || !Object.hasOwn(current, step)) return undefined;
    current = (current as Record<PathStep, unknown>)[step];
  }
  return current;
}

function compileComparison(operator: Comparison, operand: unknown): (value: unknown, call: PlanCall) => boolean {
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
    case '$regex': {
      const pattern = compilePattern(operand as string);
      // One that takes too long counts as not found.
      return (value, call) => typeof value === 'string' && pattern(value, budgetOf(call)) === true;
    }
  }
}

/** Metadata is text only, so a number or boolean of a query also means its text. */
function equals(value: unknown, operand: Scalar): boolean {
  if (value === operand) return true;
  return typeof value === 'string' && (typeof operand === 'number' || typeof operand === 'boolean')
    ? value === String(operand)
    : false;
}

/** Numbers (and text that is one) are ordered as numbers, other text by its characters; anything else has no order. */
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
