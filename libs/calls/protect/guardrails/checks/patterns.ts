import { LRUCache } from 'lru-cache';
import { RE2JS } from 're2js';
import { GatewayError } from '#libs/kernel/errors.ts';
import { requiredLiterals } from './required-literals.ts';

/** Whether the expression matches in a text. */
export type Pattern = (text: string) => boolean;

// Compiling takes milliseconds, and most calls use the same patterns as the call before.
const compiled = new LRUCache<string, Pattern>({ max: 500 });

// Characters times instructions. For a longer text the engine's cache grows to up to 8 MB, for each of hundreds of
// expressions, and would be incomplete if the search was stopped.
const rememberedWork = 20_000;

/**
 * Compiles a tenant's regular expression with RE2. Its time is linear in the text (SEC-5), but also in the expression:
 * a repetition of a thousand over a long text takes minutes, so the caller must limit the time. Throws invalid_request
 * for features that RE2 does not support (look-around, back references) and for syntax errors.
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
  const literals = requiredLiterals(rule);
  return (text) => {
    if (literals !== null && !literals.some((literal) => text.includes(literal))) return false;
    const engine = regex ?? compile(rule);
    // Returned to the cache only after a complete search, because the search can be stopped in the middle.
    regex = null;
    const found = engine.test(text);
    if (text.length * engine.programSize() <= rememberedWork) regex = engine;
    return found;
  };
}

function compile(rule: string): RE2JS {
  try {
    return RE2JS.compile(rule);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message.slice(0, 200) : 'it cannot be parsed';
    throw new GatewayError(
      'invalid_request',
      'invalid_value',
      `The rule of a regexMatch check is not a valid RE2 regular expression (which has no lookaround and no backreferences): ${why}.`,
      { param: 'rule', cause },
    );
  }
}
