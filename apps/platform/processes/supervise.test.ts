import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { expect, onTestFinished, test } from 'vitest';
import { spawnProgram, supervise, type ChildLog, type Supervised, type SuperviseOptions } from './supervise.ts';

const backoff = { firstMs: 10, maxMs: 40, resetAfterMs: 30_000 };

/** A log that has all lines of all tries. */
function createLog(): ChildLog & { written: string[] } {
  const written: string[] = [];
  let last: string[] = [];
  const line = (text: string): void => {
    written.push(text);
    last.push(text);
  };
  return {
    written,
    line,
    lastLines: () => last,
    attach(...streams) {
      last = [];
      for (const stream of streams) if (stream) createInterface(stream).on('line', line);
    },
  };
}

type Options = Partial<SuperviseOptions> & { environment?: () => Record<string, string> };

async function superviseScript(script: string, { environment = () => ({}), ...options }: Options = {}) {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-supervise-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const program = path.join(folder, 'script.mjs');
  await writeFile(program, script);
  const log = createLog();
  const problems: string[] = [];
  let givenUp: Error | undefined;
  const child: Supervised = supervise({
    name: 'child',
    spawn: () => spawnProgram({ program, environment: environment() }),
    log,
    stopDeadlineMs: 5_000,
    onProblem: (text) => problems.push(text),
    onGiveUp: (reason) => (givenUp = reason),
    mayGiveUp: () => false,
    backoff,
    ...options,
  });
  onTestFinished(() => child.kill());
  child.start();
  return { child, written: log.written, problems, givenUp: () => givenUp };
}

test('a process that ends is started again, after a wait that doubles up to its bound', async () => {
  const { problems } = await superviseScript('process.exit(7)');
  await expect.poll(() => problems.length, { timeout: 50_000 }).toBeGreaterThanOrEqual(4);
  expect(problems.slice(0, 4)).toEqual(
    [10, 20, 40, 40].map((ms) => `the child exited with code 7; restarting it in ${ms} ms`),
  );
});

test('one that lived long enough is started again after the shortest wait', async () => {
  const { problems } = await superviseScript('process.exit(0)', { backoff: { ...backoff, resetAfterMs: 0 } });
  await expect.poll(() => problems.length, { timeout: 50_000 }).toBeGreaterThanOrEqual(3);
  expect(new Set(problems)).toEqual(new Set(['the child exited with code 0; restarting it in 10 ms']));
});

test('one that never starts is given up with the last output of its last try', async () => {
  const { givenUp, problems, written } = await superviseScript(
    `console.log('about to fail'); console.error('because of the disk'); process.exit(1)`,
    { mayGiveUp: () => true, startsMax: 3 },
  );
  await expect.poll(givenUp, { timeout: 50_000 }).toBeDefined();
  const [head, ...words] = givenUp()?.message.split('\n') ?? [];
  expect(head).toBe('The child could not be started: it exited with code 1, 3 times. Its last output:');
  expect(words.toSorted()).toEqual(['  about to fail', '  because of the disk']);
  expect(problems).toEqual([]);
  expect(written.filter((line) => line === 'because of the disk')).toHaveLength(3);
});

test('stop ends it in order and returns its exit code', async () => {
  const orderly = await superviseScript(
    `process.on('SIGTERM', () => process.exit(0)); setInterval(() => {}, 1000); console.log('up')`,
  );
  await expect.poll(() => orderly.written, { timeout: 50_000 }).toEqual(['up']);
  expect(await orderly.child.stop()).toBe(true);
  expect(orderly.child.pid()).toBeUndefined();
  expect(orderly.problems).toEqual([]);
});

test('one that does not end within its deadline is killed', async () => {
  const deaf = await superviseScript(
    `process.on('SIGTERM', () => {}); setInterval(() => {}, 1000); console.log('up')`,
    {
      stopDeadlineMs: 50,
    },
  );
  await expect.poll(() => deaf.written, { timeout: 50_000 }).toEqual(['up']);
  expect(await deaf.child.stop()).toBe(false);
  expect(deaf.child.pid()).toBeUndefined();
});

test('a restart takes the environment of that moment', async () => {
  let value = 'first';
  const { child, written } = await superviseScript(
    `process.on('SIGTERM', () => process.exit(0)); setInterval(() => {}, 1000); console.log(process.env.VALUE)`,
    { environment: () => ({ VALUE: value }) },
  );
  await expect.poll(() => written, { timeout: 50_000 }).toEqual(['first']);
  value = 'second';
  await child.restart(5_000);
  await expect.poll(() => written, { timeout: 50_000 }).toEqual(['first', 'second']);
});

test('one that is stopped while it restarts stays down', async () => {
  const { child, written } = await superviseScript(
    `process.on('SIGTERM', () => setTimeout(() => process.exit(0), 50)); setInterval(() => {}, 1000); console.log('up')`,
  );
  await expect.poll(() => written, { timeout: 50_000 }).toEqual(['up']);
  const restarting = child.restart(5_000);
  await child.stop();
  await restarting;
  expect(child.pid()).toBeUndefined();
});

test('a process that SIGTERM kills before it has a handler counts as stopped cleanly', async () => {
  const { child, written } = await superviseScript(`setInterval(() => {}, 1000); console.log('loading')`);
  await expect.poll(() => written, { timeout: 50_000 }).toEqual(['loading']);
  expect(await child.stop()).toBe(true);
});

test('one that SIGTERM ends with another exit code did not', async () => {
  const { child, written } = await superviseScript(
    `process.on('SIGTERM', () => process.exit(1)); setInterval(() => {}, 1000); console.log('up')`,
  );
  await expect.poll(() => written, { timeout: 50_000 }).toEqual(['up']);
  expect(await child.stop()).toBe(false);
});

test('it has started when it says so, and each new process has to say so again', async () => {
  let quiet = 'no';
  const { child, written } = await superviseScript(
    `process.on('SIGTERM', () => process.exit(0)); setInterval(() => {}, 1000);
     if (process.env.QUIET !== 'yes') process.send('started'); console.log('up')`,
    { environment: () => ({ QUIET: quiet }) },
  );
  await expect.poll(() => child.hasStarted(), { timeout: 50_000 }).toBe(true);
  quiet = 'yes';
  await child.restart(5_000);
  await expect.poll(() => written, { timeout: 50_000 }).toEqual(['up', 'up']);
  expect(child.hasStarted()).toBe(false);
});

test('what it says last is written when its stop is over', async () => {
  const { child, written } = await superviseScript(
    // Written in one step: with many small writes, everything that the socket cannot buffer would be lost with the
    // process.
    `process.on('SIGTERM', () => { console.log(Array(500).fill('word').join('\\n')); process.exit(0); });
     setInterval(() => {}, 1000); console.log('up')`,
  );
  await expect.poll(() => written, { timeout: 50_000 }).toEqual(['up']);
  await child.stop();
  expect(written).toHaveLength(501);
});

test('what ends by itself while everything is being stopped is not started again', async () => {
  const script = `process.on('SIGTERM', () => process.exit(0)); setInterval(() => {}, 1000); console.log('up')`;
  const stopping = await superviseScript(script, { isStopping: () => true });
  const other = await superviseScript(script);
  for (const { child, written } of [stopping, other]) {
    await expect.poll(() => written, { timeout: 50_000 }).toEqual(['up']);
    process.kill(child.pid() ?? 0, 'SIGTERM'); // A service manager does the same.
  }
  await expect.poll(() => other.written, { timeout: 50_000 }).toEqual(['up', 'up']);
  expect([stopping.written, stopping.problems, stopping.child.pid()]).toEqual([['up'], [], undefined]);
});
