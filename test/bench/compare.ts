import { execFile } from 'node:child_process';
import { mkdir, readFile, symlink } from 'node:fs/promises';
import path from 'node:path';
import { parseArgs, promisify } from 'node:util';
import { measureBatch, type BatchFigures } from './batch-bench.ts';
import { compareRows, type Compared, type Side } from './compare-rows.ts';
import { startGenerator } from './live-bench.ts';
import { measureTargets, throughSluice, type Target } from './measure-targets.ts';
import { formatTable } from './report.ts';
import {
  createCleanup,
  createDatabaseBeside,
  makeScratchDirectory,
  startPostgres,
  startStack,
  type Cleanup,
  type Stack,
} from './stack.ts';
import { projectRoot } from './start-process.ts';

// npm run bench:compare REF [-- --quick]: runs the files of this checkout and those of another commit on the same machine, in
// interleaved rounds, and prints the ratios of their figures. Both have their own processes and database, and the same Postgres,
// simulator and load generator, which are those of this checkout.

const usage = 'usage: npm run bench:compare -- REF [--quick]';

const full = {
  live: { rounds: 9, seconds: 2, warmUpSeconds: 0.5, modestSeconds: 0.5 },
  batch: { rounds: 5, lines: 20_000 },
};
const quick: typeof full = {
  live: { rounds: 2, seconds: 1, warmUpSeconds: 0.5, modestSeconds: 0.2 },
  batch: { rounds: 2, lines: 2_000 },
};

const run = promisify(execFile);
const git = async (...args: string[]): Promise<string> =>
  (await run('git', ['-C', projectRoot, ...args])).stdout.trim();

const { ref, size } = readOptions();
const cleanup = createCleanup();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void cleanup.run().finally(() => process.exit(130)));
}
try {
  console.log(`\n${formatTable(compareRows(await compare()))}\n`);
} finally {
  await cleanup.run();
}

function readOptions(): { ref: string; size: typeof full } {
  try {
    const { values, positionals } = parseArgs({ options: { quick: { type: 'boolean' } }, allowPositionals: true });
    const [ref, ...others] = positionals;
    if (ref === undefined || others.length > 0) throw new Error('one commit is needed');
    return { ref, size: values.quick === true ? quick : full };
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : String(error)}\n${usage}`);
    process.exit(2);
  }
}

async function compare(): Promise<Compared> {
  const commit = await git('rev-parse', '--verify', '--short', `${ref}^{commit}`).catch(() => {
    throw new Error(`git does not know the commit ${ref}`);
  });
  const directory = await makeScratchDirectory(cleanup);
  const root = await checkOut(commit, path.join(directory, 'checkout'), cleanup);
  const postgres = await startPostgres(directory, cleanup);
  const { adminConnectionString, connectionString } = postgres;
  const other = {
    ...postgres,
    connectionString: await createDatabaseBeside(adminConnectionString, connectionString, 'other'),
  };
  const folders = { here: path.join(directory, 'here'), there: path.join(directory, 'there') };
  for (const folder of Object.values(folders)) await mkdir(folder);
  const stacks: Record<Side, Stack> = {
    here: await startStack(folders.here, postgres, cleanup),
    there: await startStack(folders.there, other, cleanup, { root }),
  };
  const sides = ['here', 'there'] as const;
  const targets = sides.map((name): Target<Side> => ({
    name,
    process: stacks[name].api,
    order: throughSluice(stacks[name]),
  }));
  const generator = await startGenerator(stacks.here, cleanup);
  const live = await measureTargets(targets, generator, size.live, progress);
  const batches: Record<Side, BatchFigures[]> = { here: [], there: [] };
  const { lines, rounds } = size.batch;
  for (const side of sides) await measureBatch(stacks[side], { lines: 1_000, lineBytes: 400 }, progress); // warms up
  for (let round = 0; round < rounds; round += 1) {
    for (const side of round % 2 === 0 ? sides : sides.toReversed()) {
      batches[side].push(await measureBatch(stacks[side], { lines, lineBytes: 400 }, progress));
    }
  }
  progress('');
  return { name: commit === ref ? commit : `${ref} (${commit})`, live, batches };
}

/** Checks a commit out into a new folder, with what it depends on. Returns the folder. */
async function checkOut(commit: string, folder: string, cleanup: Cleanup): Promise<string> {
  await git('worktree', 'add', '--detach', folder, commit);
  cleanup.add(() => git('worktree', 'remove', '--force', folder));
  const readLock = (root: string): Promise<string> => readFile(path.join(root, 'package-lock.json'), 'utf8');
  if ((await readLock(folder)) === (await readLock(projectRoot))) {
    await symlink(path.join(projectRoot, 'node_modules'), path.join(folder, 'node_modules'));
  } else {
    progress('npm ci');
    await run('npm', ['ci'], { cwd: folder });
  }
  return folder;
}

/** Progress on one line that is overwritten; nothing where the output is not a terminal. */
function progress(text: string): void {
  if (process.stdout.isTTY) process.stdout.write(`\r\u001b[2K${text}`);
}
