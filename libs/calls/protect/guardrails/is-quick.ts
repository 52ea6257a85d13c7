import { patternSize } from '#libs/contracts/pattern-size.ts';
import type { TextWork } from './judge-texts.ts';
import { isSearch, type TextCheck } from './text-checks.ts';

/**
 * Whether checks take less than one or two milliseconds together, whatever the texts and the parameters contain. Then
 * they run in the main thread, because passing them to another thread costs a tenth of that. Each check is estimated at
 * its worst case. What is not linear in texts and parameters is never quick.
 */
export function isQuick({ checks, texts }: TextWork): boolean {
  const [saidChars, measuredChars] = [charsOf(texts.said), charsOf(texts.measured)];
  let units = 0;
  for (const check of checks) {
    units += unitsOf(check, isSearch(check) ? saidChars : measuredChars);
    if (units > unitsMax) return false;
  }
  return true;
}

// A unit is one instruction of RE2 on one character: 0.05 µs, and 0.2 µs until the code is compiled.
const unitsMax = 10_000;
// Compiling an instruction takes 2 µs. Compiled expressions are cached, but each call may bring a new one.
const unitsOfInstruction = 20;

function unitsOf(check: TextCheck, chars: number): number {
  switch (check.name) {
    case 'regexMatch': {
      const size = patternSize(check.parameters.rule);
      return size * (chars + unitsOfInstruction);
    }
    case 'contains':
      // In that time, a search reads ten characters, or one in the worst case.
      return check.parameters.words.length + (check.parameters.words.length * chars) / 10;
    case 'wordCount':
    case 'sentenceCount':
    case 'characterCount':
      return chars;
    case 'jsonSchema': {
      const { units, isLinear } = schemaCost(check.parameters.schema);
      return isLinear ? units * (chars + unitsOfInstruction) : Number.POSITIVE_INFINITY;
    }
    case 'jsonKeys':
      return chars + charsOf(check.parameters.keys);
    case 'validUrls':
      return 5 * chars;
    case 'containsCode':
    case 'endsWith':
    case 'isAllLowerCase':
    case 'alluppercase':
      return chars;
  }
}

type SchemaCost = { units: number; isLinear: boolean };
const schemaCosts = new WeakMap<object, SchemaCost>();

/**
 * In the worst case a schema is applied once to each part of the value, except for references and comparisons of all
 * items with each other. Formats are regular expressions of the validator; that for `url` takes twice as long for each
 * additional letter.
 */
function schemaCost(schema: object): SchemaCost {
  const known = schemaCosts.get(schema);
  if (known !== undefined) return known;
  const text = JSON.stringify(schema);
  const cost = { units: text.length / 10, isLinear: !/"\$(?:ref|anchor)"|"uniqueItems"|"format"/.test(text) };
  schemaCosts.set(schema, cost);
  return cost;
}

function charsOf(texts: readonly string[]): number {
  let chars = 0;
  for (const text of texts) chars += text.length;
  return chars;
}
