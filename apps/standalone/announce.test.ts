import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { expect, onTestFinished, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { announce } from './announce.ts';
import type { Running } from './standalone.ts';

const running = (adminKey: Running['keys']['adminKey'], isFirstStart: boolean): Running => ({
  url: 'http://0.0.0.0:8787',
  localUrl: 'http://127.0.0.1:8787',
  simulatorUrl: 'http://127.0.0.1:1',
  keys: { masterKey: new Secret('the master key'), adminKey },
  isFirstStart,
  databaseUrl: () => 'postgres://user:password@127.0.0.1/sluice',
});

/**
 * The arguments with which curl would be called: the printed line is run by a shell in which `curl` prints its
 * arguments.
 */
async function argumentsOf(lines: string[], env: Record<string, string> = {}): Promise<string[]> {
  const line = lines.find((text) => text.startsWith('curl')) ?? '';
  const script = `curl() { printf '%s\\n' "$@"; }\n${line}`;
  const { stdout } = await promisify(execFile)('/bin/sh', ['-c', script], { env: { PATH: '/bin:/usr/bin', ...env } });
  return stdout.split('\n').slice(0, -1);
}

test('the first start shows the key, where it is kept, and a line that a shell takes as it is', async () => {
  const lines = announce(running({ value: new Secret('slk_key'), file: '/data/admin.key' }, true));
  expect(lines[0]).toBe('sluice ready http://0.0.0.0:8787/v1');
  expect(lines).toContain('admin key  slk_key');
  expect(lines.join('\n')).toContain('/data/admin.key');
  expect(lines.join('\n')).not.toContain('master');
  const [, url, , authorization, , type, , body] = await argumentsOf(lines);
  expect([url, authorization, type]).toEqual([
    'http://127.0.0.1:8787/v1/chat/completions',
    'authorization: Bearer slk_key',
    'content-type: application/json',
  ]);
  expect(JSON.parse(body ?? '')).toMatchObject({ model: '@simulator/sim-small' });
});

test('a later start does not show the key, and its line reads it from the file, whatever the path', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), "it's a folder "));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'admin.key');
  await writeFile(file, 'slk_key\n');
  const lines = announce(running({ value: new Secret('slk_key'), file }, false));
  expect(lines.join('\n')).not.toContain('slk_key');
  expect((await argumentsOf(lines))[3]).toBe('authorization: Bearer slk_key');
});

test('a key that the operator chose is named by its variable', async () => {
  const lines = announce(running({ value: new Secret('chosen'), file: undefined }, true));
  expect(lines.join('\n')).not.toContain('chosen');
  const called = await argumentsOf(lines, { SLUICE_BOOTSTRAP_KEY: 'chosen' });
  expect(called[3]).toBe('authorization: Bearer chosen');
});

test('without a key here, it says how to get one', () => {
  expect(announce(running(undefined, false)).join('\n')).toContain('keys create-admin');
});
