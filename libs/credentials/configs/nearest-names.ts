import { distance } from 'fastest-levenshtein';

const shownMax = 3;
/** The names that are compared, and the characters of each: about a millisecond. */
const comparedMax = 1_000;
const lengthMax = 64;
/** A name with more differences is not similar. */
const differencesMax = 12;

/** Returns the up to three names that differ least from a name (by Levenshtein distance), the most similar first. */
export function nearestNames(wanted: string, names: readonly string[]): string[] {
  const shortened = (name: string): string => name.slice(0, lengthMax).toLowerCase();
  const given = shortened(wanted);
  return names
    .slice(0, comparedMax)
    .map((name) => ({ name, differences: distance(given, shortened(name)) }))
    .filter(({ differences }) => differences <= differencesMax)
    .sort((one, other) => one.differences - other.differences)
    .slice(0, shownMax)
    .map(({ name }) => name);
}
