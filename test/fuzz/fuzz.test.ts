import fc from 'fast-check';
import { test } from 'vitest';
import { fuzzTargets } from './targets.ts';

// A short part of `npm run test:fuzz`. The seed is fixed, so that a run fails because of a change and not by chance.

test.each(fuzzTargets)('the fuzz target $name holds for a few hundred inputs', async ({ property }) => {
  await fc.assert(property, { seed: 22, numRuns: 300 });
});
