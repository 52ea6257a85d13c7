import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { makeFolder } from './make-folder.ts';

function ownFolder(): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'sluice-folder-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  return folder;
}

test('a folder is created with those above it, once', async () => {
  const folder = path.join(ownFolder(), 'a/b/c');
  expect(await makeFolder(folder, 0o700)).toBe(true);
  expect(statSync(folder).mode & 0o777).toBe(0o700);
  expect(await makeFolder(folder, 0o700)).toBe(false);
});

test('a file in its way is an error', async () => {
  const file = path.join(ownFolder(), 'file');
  writeFileSync(file, '');
  await expect(makeFolder(file, 0o700)).rejects.toThrow('EEXIST');
  await expect(makeFolder(path.join(file, 'below'), 0o700)).rejects.toThrow('ENOTDIR');
});

test.runIf(existsSync('/proc/self'))('a file system that has no room for folders is an error', async () => {
  await expect(makeFolder('/proc/sluice/below', 0o700)).rejects.toThrow('ENOENT');
});

test('concurrent calls create a missing parent together', async () => {
  const root = ownFolder();
  const rounds = Array.from({ length: 10 }, (_round, index) => path.join(root, `round-${index}`));
  for (const parent of rounds) {
    const folders = Array.from({ length: 8 }, (_folder, index) => path.join(parent, 'shared', `${index}`));
    const created = await Promise.all(folders.map((folder) => makeFolder(folder, 0o700)));
    expect(created).toEqual(folders.map(() => true));
  }
});
