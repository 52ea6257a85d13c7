/** A member's name, a position in a list, or every position of it (`*`). */
export type PathStep = string | number;

const stepsMax = 32;

/**
 * The steps of a path such as `tools[*].function.strict` or `messages[0].role`; null when the text is not a path. A
 * member whose name contains a dot or a bracket cannot be named. The first step is always a member.
 */
export function parseParamPath(text: string): PathStep[] | null {
  if (!/^[^.[\]]+(?:\.[^.[\]]+|\[(?:\*|\d{1,9})\])*$/.test(text)) return null;
  const steps: PathStep[] = [];
  for (const [, name, place] of text.matchAll(/([^.[\]]+)|\[(\*|\d+)\]/g)) {
    if (name !== undefined) steps.push(name);
    else steps.push(place === '*' ? '*' : Number(place));
  }
  return steps.length <= stepsMax ? steps : null;
}
