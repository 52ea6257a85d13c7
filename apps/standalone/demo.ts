import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Command, InvalidArgumentError } from 'commander';
import { removeEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { readDemoConfig } from './config.ts';
import { prepareFolder, runDemo } from './demo/run-demo.ts';
import { explain } from './explain.ts';
import { onStopSignal } from './processes/on-stop-signal.ts';
import { createStandalone } from './standalone.ts';

/** Limits memory: each custom_id stays in memory until its result is found. */
const linesMax = 1_000_000;
const interruptedExitCode = 130;

const options = new Command('demo')
  .description('Runs the whole platform in a scratch directory, sends a batch through it, and checks all results.')
  .option('--lines <count>', 'number of requests in the batch', readLines, 2_000)
  .option('--out <folder>', 'folder for the input, output and error files', 'sluice-demo')
  .option('--questions <file>', 'file of JSON lines that each have a `question`; without it, questions are generated')
  .option('--keep', 'keep the scratch directory for use with npm start')
  .showHelpAfterError()
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2))
  .parse()
  .opts<{ lines: number; out: string; questions?: string; keep?: boolean }>();

const say = (text: string): void => void process.stdout.write(`${text}\n`);
const problem = (text: string): void => void process.stderr.write(`${text}\n`);

const scratch = await mkdtemp(path.join(tmpdir(), 'sluice-demo-'));
await chmod(scratch, 0o711); // If root runs the demo, the database runs as another user, who needs to reach its folder.
const dataDir = path.join(scratch, 'data');
try {
  process.exitCode = await runInScratch();
} catch (error) {
  problem(explain(error));
  process.exitCode = 1;
} finally {
  if (options.keep) say(`The scratch directory was kept. To explore it: SLUICE_DATA_DIR=${dataDir} npm start`);
  else await removeScratch();
}
process.exit();

/** Returns the exit code: 0 only if all checks passed and every process stopped cleanly. */
async function runInScratch(): Promise<number> {
  const interrupted = new AbortController();
  const standalone = createStandalone(readDemoConfig(dataDir), { say: () => {}, problem });
  onStopSignal({
    first: () => {
      say('\nstopping and cleaning up');
      interrupted.abort(new Error('interrupted'));
      void standalone.stop();
    },
    again: () => {
      standalone.kill();
      process.exit(interruptedExitCode);
    },
  });
  let areResultsRight = false;
  const folder = path.resolve(options.out);
  try {
    say(`sluice demo: the whole platform in ${scratch}`);
    // Prepared before the start, which takes seconds, so that a mistyped folder fails immediately.
    await prepareFolder(folder);
    const startedAt = performance.now();
    const running = await standalone.start();
    say(`ready      ${running.url}/v1, after ${((performance.now() - startedAt) / 1_000).toFixed(1)} s`);
    areResultsRight = await runDemo({
      running,
      lines: options.lines,
      folder,
      ...(options.questions === undefined ? {} : { questionsFile: options.questions }),
      signal: interrupted.signal,
      stdout: process.stdout,
      logger: createLogger({ name: 'demo', level: 'silent' }),
    });
  } catch (error) {
    if (!interrupted.signal.aborted) problem(explain(error));
  }
  const isClean = await standalone.stop();
  if (interrupted.signal.aborted) return interruptedExitCode;
  if (!isClean) problem('not every process stopped cleanly');
  say(areResultsRight && isClean ? 'all checks passed' : 'some checks failed');
  return areResultsRight && isClean ? 0 : 1;
}

async function removeScratch(): Promise<void> {
  try {
    await removeEmbeddedPostgres(dataDir); // Its files may be outside of the data directory.
    await rm(scratch, { recursive: true, force: true, maxRetries: 5 });
  } catch (error) {
    problem(`${scratch} could not be removed: ${explain(error)}`);
  }
}

function readLines(text: string): number {
  const count = Number(text);
  if (Number.isSafeInteger(count) && count >= 1 && count <= linesMax) return count;
  throw new InvalidArgumentError(`It must be a whole number from 1 to ${linesMax}.`);
}
