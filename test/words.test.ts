import path from 'node:path';
import { expect, test } from 'vitest';
import { projectFiles, readSource } from './source-files.ts';

// docs/glossary.md has one word for each concept. The words and phrases below were replaced by it
// and must not come back. `still` names folders in which one is not replaced yet; an entry that is no longer true must
// be removed.

type Banned = { pattern: RegExp; say: string; still?: readonly string[] };

/** For names: `isHopeless` and `is-hopeless` are checked as "is hopeless". */
const names: readonly Banned[] = [
  { pattern: /\bhasten/, say: 'wake' },
  { pattern: /\bfruitless/, say: 'without progress' },
  {
    pattern: /\baside\b/,
    say: 'wait without a permit; of a file that is renamed when it is whole: temporary',
  },
  { pattern: /\bheeds?\b/, say: 'respects' },
  { pattern: /\bhopeless/, say: 'not retryable' },
  {
    pattern: /\btold\b/,
    say: 'reported, returned, or what it is',
  },
  { pattern: /\bturned away/, say: 'rejected' },
  { pattern: /\bsecond look/, say: 'after a refresh' },
  { pattern: /\bliving\b/, say: 'active' },
];

/** For everything that people read: comments, texts, test names, documents. */
const phrases: readonly Banned[] = [
  { pattern: /\bovertakes? the next/, say: 'strictly first in, first out' },
  { pattern: /\bis news\b/, say: 'what matters is' },
  { pattern: /\bdead at birth/, say: 'already expired' },
  { pattern: /\bloyal to\b/, say: 'no field to hash' },
  { pattern: /\bwhat each can\b/, say: 'what each supports' },
  { pattern: /\bspoken to in\b/, say: 'called through' },
  { pattern: /\bone file a process\b/, say: 'one file per process' },
  { pattern: /, this once\b/, say: 'only once' },
  { pattern: /\btold together\b/, say: 'reported at once' },
  { pattern: /\bended? by force\b/, say: 'killed' },
  { pattern: /\bnot available now\b/, say: 'temporarily unavailable' },
  { pattern: /\bspeech down\b/, say: 'transcribe' },
];

const sources = projectFiles.filter(
  (file) => /^(?:apps|libs|test)\/.*\.ts$/.test(file) && file !== 'test/words.test.ts',
);
const readable = [...sources, ...projectFiles.filter((file) => /^(?:README\.md$|docs\/[\w-]+\.md$)/.test(file))];

test.each(names)('no name says $pattern (say: $say)', ({ pattern, still = [] }) => {
  expect(foldersWith(sources, (file) => pattern.test(namesIn(file)))).toEqual(still.toSorted());
});

test.each(phrases)('no sentence says $pattern (say: $say)', ({ pattern, still = [] }) => {
  expect(foldersWith(readable, (file) => pattern.test(readSource(file)))).toEqual(still.toSorted());
});

const cache = new Map<string, string>();

/** Every name in a file's code and in its path, in lower case, split into words. */
function namesIn(file: string): string {
  const known = cache.get(file);
  if (known !== undefined) return known;
  const code = readSource(file)
    .replaceAll(/\/\*.*?\*\//gs, '')
    .replaceAll(/(^|\s)\/\/.*$/gm, '')
    .replaceAll(/'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"/g, '');
  const words = [path.basename(file, '.ts').replaceAll('-', ' '), ...new Set(code.match(/[A-Za-z]{2,}/g) ?? [])]
    .map((name) => name.replaceAll(/(?<=[a-z])(?=[A-Z])/g, ' ').toLowerCase())
    .join('\n');
  cache.set(file, words);
  return words;
}

/** The folders (two levels, three in `calls`, `database` and `providers`) with a file for which `holds` is true. */
function foldersWith(files: readonly string[], holds: (file: string) => boolean): string[] {
  const folders = files.filter(holds).map((file) => {
    const depth = /^libs\/(?:calls|database|providers)\//.test(file) ? 3 : /^(?:apps|libs|test)\//.test(file) ? 2 : 1;
    return path.dirname(file) === '.' ? file : path.dirname(file).split('/').slice(0, depth).join('/');
  });
  return [...new Set(folders)].toSorted();
}
