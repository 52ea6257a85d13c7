import { LRUCache } from 'lru-cache';
import { RE2JS } from 're2js';
import { GatewayError } from '#libs/kernel/errors.ts';
import { runOn, type WorkBudget } from './run-within.ts';

/** Whether the expression is found in a text; `too_slow` when the budget ran out. */
export type Pattern = (text: string, budget: WorkBudget) => boolean | 'too_slow';

// Compiling costs milliseconds and most calls bring the patterns of the one before.
const compiled = new LRUCache<string, Pattern>({ max: 500 });

// Characters times instructions that are matched without a clock: at most a few milliseconds. Setting one costs a tenth.
const unclockedWork = 20_000;

/**
 * A tenant's regular expression, compiled by RE2: its time is linear in the text (B2-15), but also in the expression,
 * so that a repetition of a thousand over a long text takes minutes; hence the budget.
 * Throws invalid_request for what RE2 cannot do: look-around, back references, and syntax errors.
 */
export function compilePattern(rule: string): Pattern {
  const known = compiled.get(rule);
  if (known) return known;
  const pattern = createPattern(rule);
  compiled.set(rule, pattern);
  return pattern;
}

function createPattern(rule: string): Pattern {
  let regex: RE2JS | null = compile(rule);
  return (text, budget) => {
    const known = regex ?? compile(rule);
    regex = known;
    if (budget.leftMs <= 0) return 'too_slow';
    if (text.length * known.programSize() <= unclockedWork) return known.test(text);
    let found = false;
    const isDone = runOn(budget, () => {
      found = known.test(text);
    });
    // What the engine remembers of a long text is up to 8 MB, for each of hundreds of expressions; and half made where it
    // was stopped.
    regex = null;
    return isDone ? found : 'too_slow';
  };
}

function compile(rule: string): RE2JS {
  try {
    return RE2JS.compile(rule);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message.slice(0, 200) : 'it cannot be read';
    throw new GatewayError(
      'invalid_request',
      'invalid_value',
      `The rule of a regexMatch check is not a regular expression of RE2 (no look-around, no back references): ${why}.`,
      { param: 'rule', cause },
    );
  }
}
