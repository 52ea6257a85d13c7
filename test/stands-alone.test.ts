import path from 'node:path';
import { expect, test } from 'vitest';
import { projectFiles, readSource } from './source-files.ts';

// The project explains itself: whatever a comment refers to is in the project, or is public and named.

const files = projectFiles
  .filter((file) => /\.(?:ts|md|json|ya?ml)$|Dockerfile$|\.env\.example$/.test(file))
  .filter((file) => file !== 'package-lock.json' && file !== 'test/stands-alone.test.ts');
const code = files.filter((file) => file.endsWith('.ts'));

/** The matching lines of these files, as `file:line`. */
function linesWith(pattern: RegExp, among: readonly string[]): string[] {
  return among.flatMap((file) =>
    readSource(file)
      .split('\n')
      .flatMap((line, index) => (pattern.test(line) ? [`${file}:${index + 1} ${line.trim()}`] : [])),
  );
}

const rules = [...readSource('docs/semantics.md').matchAll(/^\| ([A-Z]+)-(\d+) /gm)].map(([, family, number]) => ({
  family: family ?? '',
  id: `${family}-${number}`,
}));

/** The rules that a text cites, including all of `A-1 to A-5`. */
function citedIn(text: string): string[] {
  const families = [...new Set(rules.map(({ family }) => family))].join('|');
  const citation = new RegExp(String.raw`\b(${families})-(\d+)(?: to \1-(\d+))?\b`, 'g');
  return [...text.matchAll(citation)].flatMap(([, family, from, to = from]) =>
    Array.from({ length: Number(to) - Number(from) + 1 }, (_each, index) => `${family}-${Number(from) + index}`),
  );
}

test('every rule of docs/semantics.md has its own id, and code or a test relies on it', () => {
  const ids = rules.map(({ id }) => id);
  expect(ids.length).toBeGreaterThan(50);
  expect(ids.filter((id, index) => ids.indexOf(id) !== index)).toEqual([]);
  const cited = new Set(code.flatMap((file) => citedIn(readSource(file))));
  expect(ids.filter((id) => !cited.has(id))).toEqual([]);
});

test('every rule that code or a test cites is in docs/semantics.md', () => {
  const ids = new Set(rules.map(({ id }) => id));
  expect(code.flatMap((file) => citedIn(readSource(file)).filter((id) => !ids.has(id)))).toEqual([]);
});

test('no file refers to a document that is not in the project', () => {
  const documents = new Set(files.filter((file) => file.endsWith('.md')).map((file) => path.basename(file)));
  const missing = linesWith(/\b[\w-]+\.md\b/, files).filter((line) =>
    [...line.slice(line.indexOf(' ')).matchAll(/\b([\w-]+\.md)\b/g)].some(([, name]) => !documents.has(name ?? '')),
  );
  expect(missing).toEqual([]);
});

test('only the tests of recorded answers read files beside the project', () => {
  const beside = linesWith(/(?:\.\.\/)+shared\b|\/work\b/, files).map((line) => line.slice(0, line.indexOf(':')));
  expect([...new Set(beside)]).toEqual(['test/fixtures/provider-payloads.ts']);
});

test('no comment, name or text refers to lists and documents outside the project', () => {
  const outside =
    /\bDESIGN\b|\bSTYLE\b|\bissue \d|\b[Cc]hecks? \d+(?:, \d+)*(?: and \d+)?:|\bchecks \d+|§|\b[FI]\d{1,2}\b[:,)]|\(B\d-\d+\)|\b[Ff]ault (?:list|class)\b/;
  const lines = linesWith(outside, files);
  expect(lines).toEqual([]);
});
