import { fork, spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';

const lib = (name: string): string => JSON.stringify(new URL(`./${name}.ts`, import.meta.url).href);

// Two parts that say what happens to them; `slow` does not end by itself.
const program = `
import { runProcess } from ${lib('lifecycle')};
import { createLogger } from ${lib('logger')};
const say = (text) => process.stdout.write(text + '\\n');
const slow = process.argv[2] === 'slow';
const parts = [
  { name: 'first', start: () => say('start first'), stop: () => say('stop first') },
  { name: 'second', start: () => say('start second'), stop: async () => {
    say('stop second');
    if (slow) await new Promise(() => setInterval(() => {}, 1000));
  } },
];
await runProcess(parts, { logger: createLogger({ name: 'test', level: 'silent' }), deadlineMs: slow ? 100 : 10_000 });
say('running');
setInterval(() => {}, 1000);
`;

async function start(options: { ipc?: boolean; slow?: boolean } = {}) {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-lifecycle-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'program.ts');
  await writeFile(file, program);
  const args = options.slow ? ['slow'] : [];
  const child = options.ipc ? fork(file, args, { silent: true }) : spawn(process.execPath, [file, ...args]);
  onTestFinished(() => void child.kill('SIGKILL'));
  let output = '';
  child.stdout?.on('data', (chunk: Buffer) => (output += String(chunk)));
  const ended = new Promise<number | null>((resolve) => child.on('exit', (code) => resolve(code)));
  await expect.poll(() => output, { timeout: 10_000 }).toContain('running');
  return { child, ended, lines: () => output.split('\n').slice(0, -1) };
}

const inOrder = ['start first', 'start second', 'running', 'stop second', 'stop first'];

test('SIGTERM and SIGINT stop the parts in reverse order, and it exits 0', async () => {
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    const { child, ended, lines } = await start();
    child.kill(signal);
    expect(await ended).toBe(0);
    await expect.poll(lines).toEqual(inOrder);
  }
});

test('a child whose parent is gone stops in order by itself', async () => {
  const { child, ended, lines } = await start({ ipc: true });
  child.disconnect();
  expect(await ended).toBe(0);
  await expect.poll(lines).toEqual(inOrder);
});

test('a stop that takes too long is cut off with exit code 1', async () => {
  const { child, ended, lines } = await start({ slow: true });
  child.kill('SIGTERM');
  expect(await ended).toBe(1);
  expect(lines()).not.toContain('stop first');
});

test('a second signal ends it at once', async () => {
  const { child, ended, lines } = await start({ slow: true });
  child.kill('SIGTERM');
  await expect.poll(lines).toContain('stop second');
  child.kill('SIGTERM');
  expect(await ended).toBe(1);
});
