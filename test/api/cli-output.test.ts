import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { version } from '#libs/kernel/version.ts';
import { chatLine, toJsonl } from './batch-kit.ts';
import { stable, setUp } from './cli-kit.ts';

// What commands print, as a whole: people and scripts read it. A change is seen in the difference of a text file, which
// `vitest run test/api/cli-output.test.ts -u` writes.

const at = setUp();

/** Without what differs from run to run beside ids: hashes, times, and how long something took. */
const steady = (text: string): string =>
  stable(text, at.platform)
    .replaceAll(at.cli.folder, 'HOME')
    .replaceAll(version, 'VERSION')
    .replaceAll(/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g, 'UUID')
    .replaceAll(/\b[0-9a-f]{64}\b/g, 'SHA256')
    .replaceAll(/\b[12]\d{9}\b/g, 'SECONDS')
    .replaceAll(/batch_[0-9a-f]{32}/g, 'batch_ID')
    .replaceAll(/\bin \d+(?:\.\d+)? (?:m?s|min)\b/g, 'in DURATION')
    .replaceAll(/ {2,}/g, '  ');

/** Runs each command line and returns what a person would see: the command, what it printed, and how it ended. */
async function transcriptOf(commands: readonly string[][], stdin?: string): Promise<string> {
  let transcript = '';
  for (const args of commands) {
    const { code, stdout, stderr } = await at.cli.run(args, stdin === undefined ? {} : { stdin });
    const errors = stderr.replaceAll(/^(?=.)/gm, '! ');
    transcript += `$ sluice ${args.join(' ')}\n${stdout}${errors}${code === 0 ? '' : `exit ${code}\n`}\n`;
  }
  return steady(transcript);
}

const golden = (name: string): string => path.resolve('test/fixtures/command-line', `${name}.txt`);

test('profiles', async () => {
  const server = new URL(at.platform.baseUrl).origin;
  const transcript = await transcriptOf(
    [
      ['profiles', '--table'],
      ['login', '--server', server, '--profile', 'here'],
      ['profiles', '--table'],
      ['profiles'],
      ['whoami', '--table'],
      ['logout', '--profile', 'here'],
      ['logout', '--profile', 'here'],
    ],
    `${at.platform.adminKey}\n`,
  );
  await expect(transcript).toMatchFileSnapshot(golden('profiles'));
});

test('files and batches', async () => {
  const lines = [chatLine('one'), chatLine('two', { model: '@simulator/sim-fault-400' })];
  await writeFile(path.join(at.cli.folder, 'in.jsonl'), toJsonl(lines));
  const run = await at.cli.run(['batch', 'run', 'in.jsonl', '-o', 'out.jsonl', '--errors', 'err.jsonl']);
  const id = /batch_[0-9a-f]{32}/.exec(run.stderr)?.[0] ?? '';
  const uploaded = await at.cli.run(['files', 'upload', 'in.jsonl']);
  const { id: file } = JSON.parse(uploaded.stdout) as { id: string };
  const transcript = await transcriptOf([
    ['files', 'get', file],
    ['files', 'get', file, '--table'],
    ['files', 'list', '--purpose', 'batch', '--table'],
    ['files', 'download', file, '-o', 'back.jsonl'],
    ['files', 'delete', file],
    ['files', 'get', file],
    ['batch', 'get', id, '--table'],
    ['batch', 'failures', id, '--table'],
    ['batch', 'line', id, '9'],
    ['batch', 'verify', id, '--table'],
    ['batch', 'pause', id],
    ['batch', 'cancel', id],
    ['batch', 'get', 'batch_none'],
  ]);
  expect(await readFile(path.join(at.cli.folder, 'back.jsonl'), 'utf8')).toBe(toJsonl(lines));
  await expect(transcript).toMatchFileSnapshot(golden('files-and-batches'));
});

test('records, and files of records', async () => {
  const folder = path.join(at.cli.folder, 'records');
  await mkdir(folder);
  await writeFile(path.join(folder, 'label.yaml'), 'kind: label\nname: urgent\nspec:\n  description: first\n');
  const made = await at.cli.run(['labels', 'create', '--set', 'name=story']);
  const { id } = JSON.parse(made.stdout) as { id: string };
  const transcript = await transcriptOf([
    ['labels', 'get', id, '--table'],
    ['labels', 'update', id, '--set', 'description=told'],
    ['labels', 'list', '--table'],
    ['events', 'show', id, '--table'],
    ['events', 'list', '--record', id],
    ['diff', '-f', 'records'],
    ['apply', '-f', 'records'],
    ['diff', '-f', 'records'],
    ['labels', 'delete', id],
    ['labels', 'get', id],
    ['logs', 'search', '--model', 'none', '--table'],
    ['logs', 'get', '00000000-0000-0000-0000-000000000000'],
    ['usage', '--by', 'colour'],
    ['completion', 'tcsh'],
  ]);
  await expect(transcript).toMatchFileSnapshot(golden('records'));
});
