import { availableParallelism, setPriority } from 'node:os';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { createCleanup, createDatabaseBeside, makeScratchDirectory, startPostgres } from '#test/bench/stack.ts';
import { allAttacks } from './all-attacks.ts';
import type { Attack } from './attack.ts';
import { allowed, judge } from './judge.ts';
import { formatReports, toJson, type AttackReport } from './report.ts';
import { readCount } from '#test/read-count.ts';
import { runAttack, type Arena, type Sizes } from './run-attack.ts';
import { attackerPriority, startArena } from './start-arena.ts';

// npm run test:abuse: attacks on an API and a worker of 1 GiB each, and their effect on another workspace.

const { ratio, liveP50Ms, liveP99Ms, batchP50Ms, batchWorstMs } = allowed;
const mark =
  `The mark: beside the attack and after it, the victim takes at most ${ratio} times as long as before it, or ${liveP50Ms} ms ` +
  `(live p50), ${liveP99Ms} ms (live p99), ${batchP50Ms} ms (batch p50) and ${batchWorstMs} ms (the longest batch) where that is ` +
  `more;\nnothing of it fails, no process ends, and each stays under 1 GiB.`;
const usage =
  'usage: npm run test:abuse -- [--only name,…] [--seconds n] [--tries n] [--json] [--list]\n' +
  '  --only     these attacks (--list names them)\n' +
  '  --seconds  how long the victim is measured beside each attack; 20 unless said otherwise, and half of it alone, before and after\n' +
  '  --tries    how often a failing attack is tried before it counts; 3 unless said otherwise\n' +
  '  --json     one line of JSON for each attack instead of the table\n' +
  mark;

const options = readOptions();
const cleanup = createCleanup();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void cleanup.run().finally(() => process.exit(130)));
}
const say = (text: string): void => void process.stderr.write(`${new Date().toISOString().slice(11, 19)} ${text}\n`);
try {
  const reports = await runAll(options);
  process.exitCode = reports.some(({ broken }) => broken.length > 0) ? 1 : 0;
} finally {
  await cleanup.run();
}

function readOptions(): { attacks: readonly Attack[]; sizes: Sizes; triesMax: number; json: boolean } {
  try {
    const { values } = parseArgs({
      options: {
        only: { type: 'string' },
        seconds: { type: 'string', default: '20' },
        tries: { type: 'string', default: '3' },
        json: { type: 'boolean', default: false },
        list: { type: 'boolean', default: false },
      },
    });
    if (values.list) {
      for (const { name, what } of allAttacks) console.log(`${name.padEnd(36)} ${what}`);
      process.exit(0);
    }
    const names = values.only?.split(',');
    const unknown = names?.find((name) => !allAttacks.some((attack) => attack.name === name));
    if (unknown !== undefined) throw new Error(`there is no attack ${unknown}`);
    const seconds = readCount('seconds', values.seconds, 3_600);
    const aloneSeconds = Math.max(4, seconds / 2);
    const sizes = { besideSeconds: seconds, aloneSeconds, perSecond: 100, patienceMs: 10_000, isShort: false };
    return {
      attacks: allAttacks.filter(({ name }) => names?.includes(name) ?? true),
      sizes,
      triesMax: readCount('tries', values.tries, 10),
      json: values.json,
    };
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : String(error)}\n${usage}`);
    process.exit(2);
  }
}

async function runAll({ attacks, sizes, triesMax, json }: typeof options): Promise<AttackReport[]> {
  const folder = await makeScratchDirectory(cleanup);
  const arena = await startArena(folder, await openServer(folder), cleanup);
  // The attacker's calls are made from this process.
  setPriority(attackerPriority);
  const memory =
    arena.memory.kind === null
      ? 'no cgroup can be made here: Node has the heap that it takes in 1 GiB (512 MB), resident memory is sampled'
      : `API and worker in a ${arena.memory.kind} of 1 GiB each`;
  say(`${availableParallelism()} cores, Node ${process.version}; ${memory}`);
  const reports: AttackReport[] = [];
  for (const attack of attacks) {
    const report = await tryAttack(attack, arena, sizes, triesMax);
    reports.push(report);
    if (json) console.log(toJson(report));
  }
  if (json) return reports;
  console.log(
    `\n${memory}. Everything is on this machine, with ${availableParallelism()} cores; attacker and hostile provider get what ` +
      `of them the others leave.\nThe victim: ${sizes.perSecond} live calls a second, timed from when each is due, and batches ` +
      `of ten lines, one after the other, from upload to end.\n${mark}\n\n${formatReports(reports)}`,
  );
  return reports;
}

/** A failing attack is repeated, because something else on the machine may have slowed the victim down. */
async function tryAttack(attack: Attack, arena: Arena, sizes: Sizes, triesMax: number): Promise<AttackReport> {
  for (let tries = 1; ; tries += 1) {
    const tell = (text: string): void => say(`${attack.name}: ${text}`);
    try {
      const figures = await runAttack(attack, arena, sizes, tell);
      if ('missing' in figures) {
        tell(`skipped, ${figures.missing}`);
        return { name: attack.name, ...figures, broken: [], tries };
      }
      const broken = judge(figures, { withTimes: true });
      tell(broken.length === 0 ? 'pass' : `FAIL (try ${tries} of ${triesMax}): ${broken.join('; ')}`);
      if (broken.length === 0 || tries >= triesMax) return { name: attack.name, figures, broken, tries };
    } catch (error) {
      tell(`FAIL (try ${tries} of ${triesMax}): ${String(error)}`);
      if (tries >= triesMax) return { name: attack.name, broken: [String(error)], tries };
    }
  }
}

/** Databases on the server of DATABASE_URL, whose role must be allowed to create them, or on an embedded one. */
async function openServer(folder: string): Promise<Arena['createDatabase']> {
  const { DATABASE_URL: given } = process.env;
  const server =
    given === undefined || given === ''
      ? await startPostgres(folder, cleanup)
      : { adminConnectionString: given, connectionString: given };
  let databases = 0;
  return async () => {
    const name = `sluice_abuse_${process.pid}_${(databases += 1)}`;
    const connectionString = await createDatabaseBeside(server.adminConnectionString, server.connectionString, name);
    return {
      connectionString,
      async drop() {
        const client = new pg.Client({ connectionString: server.adminConnectionString });
        await client.connect();
        await client.query(`drop database if exists ${name} with (force)`).finally(() => client.end());
      },
    };
  };
}
