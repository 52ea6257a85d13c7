import { patternSize } from '#libs/contracts/pattern-size.ts';
import type { TextWork } from '../check-texts.ts';
import { requiredLiterals } from './required-literals.ts';
import { isSearch, type TextCheck } from './text-checks.ts';

/**
 * Whether checks take less than one or two milliseconds together, whatever the texts and the parameters contain. Such
 * checks run in the main thread, because they cost ten times less there than the transfer to another thread. Each check
 * is estimated at its worst case. A check whose time is not linear in texts and parameters is never quick.
 */
export function isQuick({ checks, texts }: TextWork): boolean {
  const [saidChars, measuredChars] = [charsOf(texts.said), charsOf(texts.measured)];
  let units = 0;
  for (const check of checks) {
    units +=
      check.name === 'regexMatch'
        ? unitsOfPattern(check.parameters.rule, texts.said, saidChars)
        : unitsOf(check, isSearch(check) ? saidChars : measuredChars);
    if (units > unitsMax) return false;
  }
  return true;
}

// A unit is one instruction of RE2 on one character: 0.05 µs, and 0.2 µs until the code is compiled.
const unitsMax = 10_000;
// Compiling an instruction takes 2 µs. Compiled expressions are cached, but each call can bring a new one.
const unitsOfInstruction = 20;

/**
 * Most texts contain none of an expression's literals, so a plain search for them shows that it cannot match
 * (patterns.ts). Otherwise, some expressions need the whole estimate: a new state of the engine for each character.
 */
function unitsOfPattern(rule: string, texts: readonly string[], chars: number): number {
  const size = patternSize(rule);
  const literals = requiredLiterals(rule);
  const whole = size * (chars + unitsOfInstruction);
  if (literals === null || whole <= unitsMax / 10) return whole;
  const searched = size * unitsOfInstruction + unitsOfSearch(literals.length, chars);
  if (searched > unitsMax) return searched;
  return texts.some((text) => literals.some((literal) => text.includes(literal))) ? whole : searched;
}

/** In the time of a unit, a search reads ten characters, or one in the worst case. */
const unitsOfSearch = (words: number, chars: number): number => words + (words * chars) / 10;

function unitsOf(check: Exclude<TextCheck, { name: 'regexMatch' }>, chars: number): number {
  switch (check.name) {
    case 'contains':
      return unitsOfSearch(check.parameters.words.length, chars);
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
