const shownMax = 3;
/** The names that are compared, and the characters of each. Names come from clients and have 200 characters at most. */
const comparedMax = 1_000;
const lengthMax = 64;
/** A name with more differences is not similar. */
const differencesMax = 12;

/** Returns the up to three names that differ least from a name, the most similar first. Takes milliseconds at most. */
export function nearestNames(wanted: string, names: readonly string[]): string[] {
  const given = wanted.slice(0, lengthMax).toLowerCase();
  const found: { name: string; differences: number }[] = [];
  for (const name of names.slice(0, comparedMax)) {
    const last = found.length < shownMax ? differencesMax : (found.at(-1)?.differences ?? 0) - 1;
    const differences = countDifferences(given, name.slice(0, lengthMax).toLowerCase(), last);
    if (differences === null) continue;
    found.push({ name, differences });
    found.sort((one, other) => one.differences - other.differences);
    found.length = Math.min(found.length, shownMax);
  }
  return found.map(({ name }) => name);
}

/**
 * The number of insertions, deletions and replacements between two texts (Levenshtein distance); null if it exceeds `max`.
 * Only the cells of the table that can be within `max` are computed.
 */
function countDifferences(one: string, other: string, max: number): number | null {
  if (Math.abs(one.length - other.length) > max) return null;
  const tooMany = max + 1;
  let previous = Uint8Array.from({ length: other.length + 1 }, (_, column) => Math.min(column, tooMany));
  let current = new Uint8Array(other.length + 1);
  for (let row = 1; row <= one.length; row += 1) {
    current.fill(tooMany);
    if (row <= max) current[0] = row;
    let least = tooMany;
    const last = Math.min(other.length, row + max);
    for (let column = Math.max(1, row - max); column <= last; column += 1) {
      const isSame = one.charCodeAt(row - 1) === other.charCodeAt(column - 1);
      const replaced = (previous[column - 1] ?? tooMany) + (isSame ? 0 : 1);
      const moved = Math.min(previous[column] ?? tooMany, current[column - 1] ?? tooMany) + 1;
      const cell = Math.min(replaced, moved, tooMany);
      current[column] = cell;
      if (cell < least) least = cell;
    }
    if (least > max && row > max) return null;
    [previous, current] = [current, previous];
  }
  const differences = previous[other.length] ?? tooMany;
  return differences > max ? null : differences;
}
