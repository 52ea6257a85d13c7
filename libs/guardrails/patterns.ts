import { LRUCache } from 'lru-cache';
import { RE2JS } from 're2js';
import { GatewayError } from '#libs/kernel/errors.ts';

// Compiling costs milliseconds and most calls bring the patterns of the one before.
const compiled = new LRUCache<string, RE2JS>({ max: 500 });

/**
 * A tenant's regular expression, compiled by RE2: its time is linear in the text, whatever it says (B2-15).
 * Throws invalid_request for what RE2 cannot do: look-around, back references, and syntax errors.
 */
export function compilePattern(rule: string): RE2JS {
  const known = compiled.get(rule);
  if (known) return known;
  let pattern: RE2JS;
  try {
    pattern = RE2JS.compile(rule);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message.slice(0, 200) : 'it cannot be read';
    throw new GatewayError(
      'invalid_request',
      'invalid_value',
      `The rule of a regexMatch check is not a regular expression of RE2 (no look-around, no back references): ${why}.`,
      { param: 'rule', cause },
    );
  }
  compiled.set(rule, pattern);
  return pattern;
}
