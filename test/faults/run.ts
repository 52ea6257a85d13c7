import { parseArgs } from 'node:util';
import { planRound } from './plan-round.ts';
import { startS3, type S3Kind } from '#test/s3-server.ts';
import { startRig } from './rig/start-rig.ts';
import { rigEnvironment, planOptions } from './settings.ts';
import { planBudgetRound, runBudgetRound } from './run-budget-round.ts';
import { runOutageRounds } from './run-outage-round.ts';
import { runPoisonRound } from './run-poison-round.ts';
import { describeFault, runRound } from './run-round.ts';

// npm run test:faults -- --seed 42 --rounds 300
const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    rounds: { type: 'string', default: '200' },
    lines: { type: 'string', default: '3000' },
    /** Percentage of rounds that do not wait until lost workers are given up. */
    hurry: { type: 'string', default: '60' },
    /** Go on after a violation instead of stopping at the first. */
    continue: { type: 'boolean', default: false },
    /** Print what happened in every round, not only in violated ones. */
    verbose: { type: 'boolean', default: false },
    /** Keep logs and data in any case. */
    keep: { type: 'boolean', default: false },
    /** Skip the round with the poison line, which takes a minute. */
    'no-poison': { type: 'boolean', default: false },
    /** Skip the three rounds with calls that last longer than an outage, about a minute each. */
    'no-outages': { type: 'boolean', default: false },
    /** Keeps the blobs in this S3 server instead of on disk: moto or versitygw. */
    s3: { type: 'string' },
    /** Rounds under a budget, before the others; in every other one, lines wait for it. */
    budgets: { type: 'string', default: '20' },
  },
});
const firstSeed = Number(values.seed);
const rounds = Number(values.rounds);
const options = { ...planOptions, linesMax: Number(values.lines), hurryPercent: Number(values.hurry) };

const s3 = values.s3 === undefined ? null : await startS3(values.s3 as S3Kind);
let violated = 0;
if (!values['no-outages']) {
  for await (const { fault, violations } of runOutageRounds(s3)) {
    console.log(`${violations.length === 0 ? 'ok  ' : 'FAIL'} outage: ${fault.kind} during 400 calls of 30 s`);
    for (const violation of violations) console.log(`  violated: ${violation}`);
    if (violations.length > 0) violated += 1;
  }
}
const rig = await startRig(rigEnvironment, s3);
console.log(`seed ${firstSeed}, ${rounds} rounds, in ${rig.folder}${s3 ? `, blobs in ${s3.endpoint}` : ''}`);
const stop = async (keepFolder: boolean): Promise<void> => {
  await rig.stop({ keepFolder });
  await s3?.stop();
};
process.once('SIGINT', () => void stop(false).then(() => process.exit(130)));

const poison = values['no-poison'] ? { violations: [], kills: 0 } : await runPoisonRound(rig);
if (poison.kills > 0)
  console.log(`${poison.violations.length === 0 ? 'ok  ' : 'FAIL'} poison: a line that ended ${poison.kills} workers`);
for (const violation of poison.violations) console.log(`  violated: ${violation}`);
const worst = { stallMs: 0, seed: 0, hurriedMs: 0 };
if (poison.violations.length > 0) violated += 1;
let done = 0;
for (let seed = firstSeed; seed < firstSeed + Number(values.budgets); seed += 1) {
  const plan = planBudgetRound(seed, 600, seed % 2 === 0 ? 'wait' : 'fail');
  const { violations, story } = await runBudgetRound(rig, plan);
  console.log(`${violations.length === 0 ? 'ok  ' : 'FAIL'} ${seed}  lines ${plan.whenUsedUp}: budget of ${story}`);
  for (const violation of violations) console.log(`  violated: ${violation}`);
  if (violations.length > 0) violated += 1;
  if (violated > 0 && !values.continue) break;
}
for (let seed = firstSeed; seed < firstSeed + rounds; seed += 1) {
  const plan = planRound(seed, options);
  const report = await runRound(rig, plan);
  done += 1;
  if (plan.hurry) worst.hurriedMs = Math.max(worst.hurriedMs, report.stallMs);
  else if (report.stallMs > worst.stallMs) Object.assign(worst, { stallMs: report.stallMs, seed });
  const faults = report.struck.join(' ');
  console.log(
    `${report.violations.length === 0 ? 'ok  ' : 'FAIL'} ${seed}  ${String(plan.lines).padStart(4)} lines ` +
      `${report.status.padEnd(9)} ${(report.durationMs / 1_000).toFixed(1).padStart(5)} s  ` +
      `stall ${(report.stallMs / 1_000).toFixed(1).padStart(4)} s${plan.hurry ? ' h' : '  '} ${plan.workers}w  ${faults}`,
  );
  const isViolated = report.violations.length > 0;
  if (isViolated) violated += 1;
  else if (!values.verbose) continue;
  for (const violation of report.violations) console.log(`  violated: ${violation}`);
  console.log(`  plan: ${plan.faults.map(describeFault).join('; ')}; model ${plan.model}; expiry ${plan.expiryMs}`);
  console.log(report.timeline.map((line) => `  ${line}`).join('\n'));
  console.log(
    `  again: npm run test:faults -- --seed ${seed} --rounds 1 --lines ${values.lines} --hurry ${values.hurry}\n`,
  );
  if (isViolated && !values.continue) break;
}
const left = await rig.sweep();
if (left.blobs !== left.referenced) {
  violated += 1;
  console.log(`violated: ${left.blobs} blobs are left, ${left.referenced} are referenced`);
}
const keepFolder = values.keep || violated > 0;
await stop(keepFolder);
console.log(
  `${done} rounds, ${violated} with violations; longest stall ${(worst.stallMs / 1_000).toFixed(1)} s (seed ${worst.seed}), ` +
    `${(worst.hurriedMs / 1_000).toFixed(1)} s where lost workers were given up at once`,
);
if (keepFolder) console.log(`logs and data are kept in ${rig.folder}`);
process.exitCode = violated > 0 ? 1 : 0;
