import { afterAll, beforeAll, expect, test } from 'vitest';
import { faultKinds, planRound } from './plan-round.ts';
import { startRig, type Rig } from './rig/start-rig.ts';
import { describeFault, runRound } from './run-round.ts';
import { planOptions, rigEnvironment } from './settings.ts';

// The short part of the crash suite: batches under kill -9 of worker, API and Postgres, hangs, cancels and lost
// sessions, at seeded moments. `npm run test:faults` runs hundreds, `-- --seed N --rounds 1` one of them again.
const options = { ...planOptions, linesMax: 400, hurryPercent: 100, longOutagePercent: 0 };
// Together they have every kind of fault, both ends of a batch that is not completed, and one or two workers (in this
// order, so that the second is stopped only once).
const seeds = [13, 48, 21, 26, 37, 34, 30, 24, 36, 54];

const plans = seeds.map((seed) => planRound(seed, options));

test('the short part has every kind of fault', () => {
  const kinds = new Set(plans.flatMap((plan) => plan.faults.map(({ kind }) => kind)));
  expect([...kinds].toSorted()).toEqual(faultKinds.toSorted());
});

let rig: Rig;
let violated = false;

beforeAll(async () => {
  rig = await startRig(rigEnvironment);
});
afterAll(async () => {
  await rig.stop({ keepFolder: violated });
});

test.each(plans)(
  'seed $seed: every line of $lines is in one file, and counts, log and read models agree',
  { timeout: 240_000 },
  async (plan) => {
    const { violations, timeline } = await runRound(rig, plan);
    violated ||= violations.length > 0;
    const story = [...plan.faults.map(describeFault), ...timeline].join('\n');
    expect(violations, `${story}\nlogs: ${rig.folder}/logs`).toEqual([]);
  },
);
