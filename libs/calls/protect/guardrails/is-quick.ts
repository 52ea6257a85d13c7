import { patternSize } from '#libs/contracts/pattern-size.ts';
import type { TextWork } from './judge-texts.ts';
import { isSearch, type TextCheck } from './text-checks.ts';

/**
 * Whether checks take less than a millisecond or two together, whatever stands in the texts and the parameters: then they
 * are judged where the call is, because to hand them to a thread costs a tenth of that. Each check is reckoned with its
 * worst case: what is not linear in text and parameters is never quick.
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

// A unit is an instruction of RE2 on one character: 0.05 µs, and 0.2 µs before the code is warm.
const unitsMax = 10_000;
// Compiling an instruction takes 2 µs. Expressions are kept compiled, but the next one may be new each time.
const unitsOfInstruction = 20;

function unitsOf(check: TextCheck, chars: number): number {
  switch (check.name) {
    case 'regexMatch': {
      const size = patternSize(check.parameters.rule);
      return size * (chars + unitsOfInstruction);
    }
    case 'contains':
      // A search passes ten characters in that time, at worst one.
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
  }
}

type SchemaCost = { units: number; isLinear: boolean };
const schemaCosts = new WeakMap<object, SchemaCost>();

/**
 * A schema is at worst applied to each part of the value once, but for references and comparisons of all with all. Formats
 * are regular expressions of the validator, of which that for `url` takes twice as long for each further letter.
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
