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

test('folders that are made at the same time share those above them', async () => {
  const folder = ownFolder();
  const made = await Promise.all(
    Array.from({ length: 256 }, (_value, index) => makeFolder(path.join(folder, `${index >> 3}/${index & 3}`), 0o700)),
  );
  expect(made.filter(Boolean)).toHaveLength(128);
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
