import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { projectFiles, readSource } from './source-files.ts';

// A clean clone has no generated files: the image, and `npm ci`, build the console from tracked files alone.

const root = path.resolve(import.meta.dirname, '..');

test('the console builds from the tracked files that its stage of the image copies', () => {
  const stage = /^FROM \S+ AS console$([\s\S]*?)^FROM /m.exec(readSource('Dockerfile'))?.[1] ?? '';
  const copied = [...stage.matchAll(/^COPY (.+) \S+$/gm)].flatMap(([, names = '']) => names.split(' '));
  expect(copied).toContain('apps');
  const sent = readSource('.dockerignore').split('\n');
  expect(copied.filter((each) => !sent.includes(`!${each}`))).toEqual([]);
  const folder = mkdtempSync(path.join(tmpdir(), 'sluice-console-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  for (const file of projectFiles) {
    const isCopied = copied.some((each) => file === each || file.startsWith(`${each}/`));
    if (!isCopied || /\.test\.ts$|\/__fixtures__\//.test(file) || !existsSync(path.join(root, file))) continue;
    mkdirSync(path.join(folder, path.dirname(file)), { recursive: true });
    cpSync(path.join(root, file), path.join(folder, file));
  }
  symlinkSync(path.join(root, 'node_modules'), path.join(folder, 'node_modules'));
  execFileSync(process.execPath, [path.join(folder, 'apps/console/build.ts')], { stdio: 'pipe' });
  expect(existsSync(path.join(folder, 'apps/console/dist/index.html'))).toBe(true);
});
