import { parseArgs } from 'node:util';
import fc from 'fast-check';
import { readCount } from '#test/read-count.ts';
import { fuzzTargets } from './targets.ts';

// npm run test:fuzz: random inputs for everything that parses untrusted bytes, for a given time.

const usage =
  'usage: npm run test:fuzz -- [--only name,…] [--seconds n] [--seed n]\n' +
  `  --only     these targets: ${fuzzTargets.map(({ name }) => name).join(', ')}\n` +
  '  --seconds  how long each target runs; 30 unless given\n' +
  '  --seed     the seed of the first input; random unless given, and printed, so that a failure can be repeated';

const { targets, seconds, seed } = readOptions();
console.log(`seed ${seed}, ${seconds} s for each target`);
for (const { name, property } of targets) {
  const started = performance.now();
  const result = await fc.check(property, {
    seed,
    numRuns: 100_000_000,
    interruptAfterTimeLimit: seconds * 1_000,
    // Finding a smaller input for a failure must end as well.
    maxSkipsPerRun: 1_000,
  });
  const took = ((performance.now() - started) / 1_000).toFixed(1);
  console.log(
    `${result.failed ? 'FAIL' : 'ok  '}  ${name.padEnd(8)} ${result.numRuns.toLocaleString('en')} inputs in ${took} s`,
  );
  if (!result.failed) continue;
  process.exitCode = 1;
  console.log(fc.defaultReportMessage(result) ?? '');
  console.log(`Repeat it with: npm run test:fuzz -- --only ${name} --seed ${seed}`);
}

function readOptions(): { targets: typeof fuzzTargets; seconds: number; seed: number } {
  try {
    const { values } = parseArgs({
      options: { only: { type: 'string' }, seconds: { type: 'string' }, seed: { type: 'string' } },
    });
    const names = values.only?.split(',');
    const unknown = names?.find((name) => !fuzzTargets.some((target) => target.name === name));
    if (unknown !== undefined) throw new Error(`'${unknown}' is not a target`);
    return {
      targets: fuzzTargets.filter(({ name }) => names?.includes(name) ?? true),
      seconds: readCount('seconds', values.seconds ?? '30', 86_400),
      seed: readCount('seed', values.seed ?? String(Date.now() % 2_147_483_647), 2_147_483_647),
    };
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : String(error)}\n${usage}`);
    process.exit(2);
  }
}
