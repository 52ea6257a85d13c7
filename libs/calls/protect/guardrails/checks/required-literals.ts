import { endOfClass } from '#libs/contracts/pattern-size.ts';

/**
 * Texts of which every match of an RE2 expression contains at least one; null if none can be told from a short look. So a
 * text with none of them does not match, which a plain search says many times faster than the engine: one literal for each
 * alternative, and of those that it must contain the longest. What is in groups is not looked at.
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
      // The character before may be absent.
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

/** Characters that stand for themselves, and those that do after a backslash. */
const plain = /[\w \-@:/,;#%&=<>"'!~`]/;
const escaped = /[-@:/,;#%&=<>"'!~`.$^*+?()[\]{}|\\]/;
/** Escapes that are one letter long, such as those of classes. Others go on behind it: `\x41`. */
const isOneLetter = /[dDwWsSbBAztnrfv]/;
const literalsMax = 20;
