/**
 * Estimates how many instructions RE2 needs for an expression, without compiling it. The estimate is never much too
 * low. Each character counts once, and repetitions count with their maximum: `(ab{3}){10}` is 50. Unicode classes count
 * more, because their tables are long. Text that is not a valid expression has some size, too.
 */
export function patternSize(rule: string): number {
  // The sizes of the open groups so far, from the outside in.
  const open: number[] = [0];
  let last = 0; // The size of the part that a repetition would repeat.
  const add = (size: number): void => {
    last = size;
    open[open.length - 1] = (open.at(-1) ?? 0) + size;
  };
  for (let at = 0; at < rule.length; at += 1) {
    const character = rule[at];
    if (rule.startsWith('\\Q', at)) {
      // Up to \E, or to the end, every character matches itself.
      const end = rule.indexOf('\\E', at + 2);
      const literal = rule.slice(at + 2, end === -1 ? rule.length : end);
      add(literal.length);
      last = Math.min(1, literal.length);
      at += literal.length + (end === -1 ? 1 : 3);
    } else if (character === '\\') {
      add(1);
      at += 1;
      const [name] = /^[pP]\{[^}]*\}/.exec(rule.slice(at, at + classNameMax)) ?? [];
      at += name === undefined ? 0 : name.length - 1;
    } else if (character === '[') {
      add(1);
      at = endOfClass(rule, at);
    } else if (character === '(') {
      open.push(1);
      last = 0;
    } else if (character === ')' && open.length > 1) {
      add(open.pop() ?? 0);
    } else if (character === '{') {
      const [text, least = '', , most = ''] = /^\{(\d{1,4})(,(\d{0,4}))?\}/.exec(rule.slice(at, at + 12)) ?? [];
      if (text === undefined) add(1);
      else {
        const times = Math.max(1, Number(least), Number(most));
        open[open.length - 1] = (open.at(-1) ?? 0) + last * (times - 1);
        at += text.length - 1;
      }
    } else add(1);
  }
  const unicodeClasses = rule.match(/\\[pP]/g)?.length ?? 0;
  return open.reduce((sum, size) => sum + size, unicodeClasses * unicodeClassSize);
}

const unicodeClassSize = 100;
const classNameMax = 100;

/** The index of the bracket that closes the class that opens at `start`. */
export function endOfClass(rule: string, start: number): number {
  // A bracket right at the start, or after the caret, is a member of the class.
  let at = start + (rule[start + 1] === '^' ? 2 : 1);
  if (rule[at] === ']') at += 1;
  while (at < rule.length && rule[at] !== ']') at += rule[at] === '\\' ? 2 : 1;
  return at;
}
