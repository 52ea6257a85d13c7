import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { startedMessage } from './lifecycle.ts';

const lib = (name: string): string => JSON.stringify(new URL(`./${name}.ts`, import.meta.url).href);

// Two parts that log their start and stop. The variant determines where one hangs or fails.
const program = `
import { runProcess } from ${lib('lifecycle')};
import { createLogger } from ${lib('logging/logger')};
import { ConfigurationError } from ${lib('read-env')};
const say = (text) => process.stdout.write(text + '\\n');
const variant = process.argv[2];
const forEver = () => new Promise(() => setInterval(() => {}, 1000));
const parts = [
  { name: 'first', start: () => say('start first'), stop: () => say('stop first') },
  { name: 'second', start: async (signal) => {
    say('start second');
    if (variant === 'wrong') throw new ConfigurationError('PORT: is wrong');
    if (variant === 'broken') throw new Error('a bug');
    if (variant === 'stuck start') await forEver();
    if (!variant.endsWith('starting')) return;
    const alive = setInterval(() => {}, 1000);
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
    await new Promise((resolve) => setTimeout(resolve, 50));
    clearInterval(alive);
    say('started second');
    if (variant === 'failing while starting') throw signal.reason;
  }, stop: async () => {
    say('stop second');
    if (variant === 'stuck stop') await forEver();
  } },
  { name: 'third', start: () => say('running') },
];
const deadlineMs = variant.startsWith('stuck') ? 300 : 10_000;
await runProcess(parts, { logger: createLogger({ name: 'test', level: 'silent' }), deadlineMs });
setInterval(() => {}, 1000);
`;

type Variant = 'wrong' | 'broken' | 'stuck start' | 'stuck stop' | 'starting' | 'failing while starting';

async function start({ variant, ipc = false }: { variant?: Variant; ipc?: boolean } = {}) {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-lifecycle-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'program.ts');
  await writeFile(file, program);
  const args = [variant ?? ''];
  const child = ipc ? fork(file, args, { silent: true }) : spawn(process.execPath, [file, ...args]);
  onTestFinished(() => void child.kill('SIGKILL'));
  let output = '';
  let errors = '';
  const messages: unknown[] = [];
  child.stdout?.on('data', (chunk: Buffer) => (output += String(chunk)));
  child.stderr?.on('data', (chunk: Buffer) => (errors += String(chunk)));
  child.on('message', (message) => messages.push(message));
  const exited = once(child, 'exit') as Promise<[number | null]>;
  const streams = [child.stdout, child.stderr].filter((stream) => stream !== null);
  const read = Promise.all(streams.map((stream) => once(stream, 'close')));
  const ended = read.then(async () => (await exited)[0]);
  await expect
    .poll(() => output, { timeout: 50_000 })
    .toMatch(variant?.includes('start') ? /start second/ : /running|stop/);
  return { child, ended, messages, lines: () => output.split('\n').slice(0, -1), errors: () => errors };
}

const inOrder = ['start first', 'start second', 'running', 'stop second', 'stop first'];

test('SIGTERM and SIGINT stop the parts in reverse order, and it exits 0', async () => {
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    const { child, ended, lines } = await start();
    child.kill(signal);
    expect(await ended).toBe(0);
    expect(lines()).toEqual(inOrder);
  }
});

test('SIGTERM during the start waits for the starting part, starts no other, and stops those that run', async () => {
  for (const variant of ['starting', 'failing while starting'] as const) {
    const { child, ended, lines } = await start({ variant });
    child.kill('SIGTERM');
    expect(await ended).toBe(0);
    expect(lines()).toEqual(['start first', 'start second', 'started second', 'stop second', 'stop first']);
  }
});

test('a part whose start does not end after SIGTERM is killed at the deadline, with exit code 1', async () => {
  const { child, ended, lines } = await start({ variant: 'stuck start' });
  child.kill('SIGTERM');
  expect(await ended).toBe(1);
  expect(lines()).toEqual(['start first', 'start second']);
});

test('a start that fails stops the parts that run and exits 1, and configuration errors are printed as they are', async () => {
  for (const variant of ['wrong', 'broken'] as const) {
    const { ended, lines, errors } = await start({ variant });
    expect(await ended).toBe(1);
    expect(lines()).toEqual(['start first', 'start second', 'stop second', 'stop first']);
    expect(errors()).toBe(variant === 'wrong' ? 'PORT: is wrong\n' : '');
  }
});

test('a child tells its parent that it has started, unless it was stopped before', async () => {
  const whole = await start({ ipc: true });
  await expect.poll(() => whole.messages).toEqual([startedMessage]);
  const interrupted = await start({ ipc: true, variant: 'starting' });
  interrupted.child.kill('SIGTERM');
  expect(await interrupted.ended).toBe(0);
  expect(interrupted.messages).toEqual([]);
});

test('a child whose parent has died stops in order by itself', async () => {
  const { child, ended, lines } = await start({ ipc: true });
  child.disconnect();
  expect(await ended).toBe(0);
  expect(lines()).toEqual(inOrder);
});

test('a stop that takes too long ends with exit code 1', async () => {
  const { child, ended, lines } = await start({ variant: 'stuck stop' });
  child.kill('SIGTERM');
  expect(await ended).toBe(1);
  expect(lines()).not.toContain('stop first');
});

test('a second signal ends it at once', async () => {
  const { child, ended, lines } = await start({ variant: 'starting' });
  child.kill('SIGTERM');
  child.kill('SIGINT');
  expect(await ended).toBe(1);
  expect(lines()).not.toContain('stop first');
});

test('a second signal to a child is ignored, because a service manager and its parent may both signal it', async () => {
  const { child, ended, lines } = await start({ ipc: true, variant: 'starting' });
  child.kill('SIGTERM');
  child.kill('SIGINT');
  expect(await ended).toBe(0);
  expect(lines()).toContain('stop first');
});
