import { endOfClass } from '#libs/contracts/pattern-size.ts';

/**
 * Returns literals of which every match of an RE2 expression contains at least one; null if a short inspection finds
 * none. A text without any of them cannot match, and a plain search shows that many times faster than the engine. Each
 * alternative contributes one literal: the longest of those that it must contain. The content of groups is not
 * inspected.
 */
export function requiredLiterals(rule: string): readonly string[] | null {
  // Flags change what the characters after them mean, also in the alternatives that follow; `[:` begins a class in a class.
  if (/\(\?[^:]|\[:/.test(rule)) return null;
  const literals: string[] = [];
  let longest = '';
  let run = '';
  let depth = 0;
  const endRun = (): void => {
    if (run.length > longest.length) longest = run;
    run = '';
  };
  for (let at = 0; at < rule.length; at += 1) {
    const character = rule[at] ?? '';
    const next = rule[at + 1] ?? '';
    if (depth === 0 && plain.test(character)) run += character;
    else if (character === '\\') {
      if (depth === 0 && escaped.test(next)) run += next;
      else if (isOneLetter.test(next) || escaped.test(next)) endRun();
      else return null;
      at += 1;
    } else if (depth === 0 && '?*{'.includes(character)) {
      // The character before this one can be absent from a match.
      run = run.slice(0, -1);
      endRun();
      if (character === '{') {
        const [times] = /^\{\d+(?:,\d*)?\}/.exec(rule.slice(at, at + 20)) ?? [];
        if (times === undefined) return null;
        at += times.length - 1;
      }
    } else {
      endRun();
      if (character === '[') at = endOfClass(rule, at);
      else if (character === '(') depth += 1;
      else if (character === ')') depth -= 1;
      else if (character === '|' && depth === 0) {
        if (longest === '') return null;
        literals.push(longest);
        longest = '';
      }
    }
  }
  endRun();
  return longest === '' || literals.length >= literalsMax ? null : [...literals, longest];
}

/** Characters that match themselves, and characters that match themselves after a backslash. */
const plain = /[\w \-@:/,;#%&=<>"'!~`]/;
const escaped = /[-@:/,;#%&=<>"'!~`.$^*+?()[\]{}|\\]/;
/** Escapes of a single letter, such as those for classes. Other escapes are longer: `\x41`. */
const isOneLetter = /[dDwWsSbBAztnrfv]/;
const literalsMax = 20;
