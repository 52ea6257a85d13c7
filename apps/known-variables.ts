import { distance } from 'fastest-levenshtein';
import { fileVariables, variableNames } from '#libs/kernel/read-env.ts';
import { ApiConfig } from './api/config.ts';
import { WorkerConfig } from './worker/config.ts';

/** Variables of `npm start`, the command line and the tests, in addition to those of the API and the worker. */
const others = ['SLUICE_SIMULATOR_PORT', 'SLUICE_URL', 'SLUICE_API_KEY', 'SLUICE_PROFILE'];
const otherPrefixes = /^SLUICE_(?:TEST|BENCH|SECRET)_/;

const known: ReadonlySet<string> = new Set([
  ...Object.keys(ApiConfig.shape),
  ...Object.keys(WorkerConfig.shape),
  ...fileVariables.map((name) => `${name}_FILE`),
  ...others,
]);

/** If more characters differ than this, it is another word instead of a typing mistake. */
const slipsMax = 4;

/**
 * Returns a sentence for each `SLUICE_…` variable that no process of Sluice reads, with the most similar name that one does
 * read. Such a variable is not an error: it can belong to another release, and a process must start after a rollback.
 */
export function describeUnknownVariables(names: readonly string[] = variableNames()): string[] {
  return names
    .filter((name) => name.startsWith('SLUICE_') && !known.has(name) && !otherPrefixes.test(name))
    .map((name) => {
      const [nearest] = [...known]
        .map((candidate) => ({ candidate, slips: distance(name, candidate) }))
        .filter(({ slips }) => slips <= slipsMax)
        .toSorted((a, b) => a.slips - b.slips);
      const hint = nearest === undefined ? '' : ` Did you mean ${nearest.candidate}?`;
      return `${name} is not a variable of Sluice and has no effect.${hint}`;
    });
}
