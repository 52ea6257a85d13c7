import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';

const root = path.resolve(import.meta.dirname, '..');
const texts = new Map<string, string>();

/** Returns the text of a file of the project, by its path from the root. */
export function readSource(file: string): string {
  const text = texts.get(file) ?? readFileSync(path.join(root, file), 'utf8');
  texts.set(file, text);
  return text;
}

/** Every file that git tracks, by its path from the root. */
export const projectFiles: readonly string[] = execFileSync('git', ['ls-files'], { cwd: root, encoding: 'utf8' })
  .split('\n')
  .filter((file) => file !== '');

/** The files of the product itself: no tests and none of their helpers. */
export const productFiles = projectFiles.filter((file) => /^(?:apps|libs)\/.*(?<!\.test)\.ts$/.test(file));

/** Returns the files of the project that a file imports, including for types only, and the workers that it starts. */
export function importsOf(file: string): string[] {
  const imported = [...readSource(file).matchAll(/\b(?:from|import)\s*\(?\s*'(#|\.{1,2}\/)([^']+\.ts)'/g)].map(
    ([, start = '', rest = '']) => (start === '#' ? rest : path.join(path.dirname(file), start, rest)),
  );
  return [...new Set(imported)];
}
