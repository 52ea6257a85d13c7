import { afterAll, beforeAll, expect, test } from 'vitest';
import { faultKinds, planRound } from './plan-round.ts';
import { planBudgetRound, runBudgetRound } from './run-budget-round.ts';
import { startRig, type Rig } from './rig/start-rig.ts';
import { describeFault, runRound } from './run-round.ts';
import { planOptions, rigEnvironment } from './settings.ts';

// The short part of the crash suite: batches under kill -9 of worker, API and Postgres, hangs, cancels and lost
// sessions, at seeded moments. `npm run test:faults` runs hundreds, `-- --seed N --rounds 1` one of them again.
const options = { ...planOptions, linesMax: 400, hurryPercent: 100, longOutagePercent: 0, longCallsPercent: 0 };
// Together they have every kind of fault, a batch that expires and one that is cancelled. One has a single worker.
const seeds = [1095, 242, 258, 80, 1709, 3972, 2847];

const plans = seeds.map((seed) => planRound(seed, options));

let rig: Rig;
let violated = false;
const struck = new Set<string>();

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
    const { violations, timeline, ...report } = await runRound(rig, plan);
    for (const kind of report.struck) struck.add(kind);
    violated ||= violations.length > 0;
    const story = [...plan.faults.map(describeFault), ...timeline].join('\n');
    expect(violations, `${story}\nlogs: ${rig.folder}/logs`).toEqual([]);
  },
);

// A worker and Postgres are killed in this one.
test('a budget is never exceeded and never stuck, although processes are killed', { timeout: 120_000 }, async () => {
  const { violations, story } = await runBudgetRound(rig, planBudgetRound(16, 200));
  violated ||= violations.length > 0;
  expect(violations, `${story}\nlogs: ${rig.folder}/logs`).toEqual([]);
});

test('every kind of fault struck', () => {
  expect([...struck].toSorted()).toEqual(faultKinds.toSorted());
});
