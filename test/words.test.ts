import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { parseSync, Visitor } from 'vite';
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

type Pattern = { pattern: RegExp; say: string; allowed?: RegExp } & Partial<Record<Place, number>>;
type Place = 'texts' | 'tests' | 'comments' | 'documents';

/**
 * Constructions that sound foreign. A number is how often texts of the product, strings of tests, comments and documents
 * still contain one; without a number, they contain none. Lower the number when you rewrite a sentence.
 */
const patterns: readonly Pattern[] = [
  {
    pattern: /(?<![Tt]here )\bis no (?!longer)/,
    say: 'is not a …; does not exist',
    tests: 52,
    comments: 11,
  },
  { pattern: /(?<![Tt]here )\bare no (?!longer)/, say: 'are not …', tests: 9, comments: 7 },
  { pattern: /\bwhich is the most\b/, say: 'already has 100 uploads, the maximum' },
  { pattern: /\bas many as\b/, say: 'the limit is reached; up to', tests: 1, documents: 1 },
  { pattern: /\bgo(?:es)? on\b/, say: 'continues, resumes, keeps', tests: 61, comments: 10 },
  { pattern: /\bgo(?:es)? by\b/, say: 'uses, follows', tests: 3, comments: 2 },
  { pattern: /\b(?:is|are|was|were) away\b/, say: 'is unavailable', tests: 11, comments: 5 },
  { pattern: /\b(?:is|are|was|were) gone\b/, say: 'was deleted, has ended', tests: 17, comments: 6 },
  { pattern: /\bleads? (?:to|nowhere|out of)\b/, say: 'points to, causes', tests: 6, comments: 2 },
  { pattern: /\bby (?:itself|themselves)\b/, say: 'automatically, separately', tests: 14, comments: 12 },
  { pattern: /\bof (?:its|their) own\b/, say: 'its own …', tests: 33, comments: 33, documents: 2 },
  { pattern: /\bthe ones? before\b/, say: 'the previous one', tests: 4, comments: 2 },
  {
    pattern: /\b(?:[Nn]|[Ss]ome)obody\b/,
    say: 'no one; name who does it',
    allowed: /server-user\.ts: nobody$/,
    tests: 95,
    comments: 24,
    documents: 1,
  },
  { pattern: /\bwhat stands\b/, say: 'what the text contains', tests: 3, comments: 1 },
  { pattern: /\b(?:told|heard)\b/, say: 'reported, received', tests: 49, comments: 7 },
  { pattern: /\bmade of\b/, say: 'derived from, consists of', tests: 9 },
  { pattern: /\bbut for\b/, say: 'except', tests: 3, comments: 3 },
  { pattern: /\bbeside\b/, say: 'next to, in addition to', tests: 51, comments: 9 },
  { pattern: /\b[Ww]hoever\b/, say: 'anyone who', tests: 7, comments: 4 },
  { pattern: /(?:^|[.:;] )(?:Of|That of|Those of) /, say: 'a sentence with a subject', documents: 1 },
  {
    pattern: /\bmay(?! (?:not )?be (?:out|lost|sufficient)| (?:still )?have)\b/,
    say: 'can, is allowed to; for a possibility: can',
    allowed: / as may from /,
    texts: 3,
    tests: 106,
    comments: 65,
    documents: 7,
  },
];

const sources = projectFiles.filter(
  (file) => /^(?:apps|libs|test)\/.*\.ts$/.test(file) && file !== 'test/words.test.ts',
);
/** The simulator repeats the messages of providers. */
const typed = projectFiles.filter(
  (file) =>
    /^(?:apps|libs|test)\/.*\.tsx?$/.test(file) && !/^apps\/simulator\/(?:wire|model)\/|words\.test\.ts$/.test(file),
);
const readable = [...sources, ...projectFiles.filter((file) => /^(?:README\.md$|docs\/[\w-]+\.md$)/.test(file))];

test.each(names)('no name says $pattern (say: $say)', ({ pattern, still = [] }) => {
  expect(foldersWith(sources, (file) => pattern.test(namesIn(file)))).toEqual(still.toSorted());
});

test.each(phrases)('no sentence says $pattern (say: $say)', ({ pattern, still = [] }) => {
  expect(foldersWith(readable, (file) => pattern.test(readSource(file)))).toEqual(still.toSorted());
});

const places: readonly Place[] = ['texts', 'tests', 'comments', 'documents'];

test.each(patterns)('$pattern is not used more often than before (say: $say)', ({ pattern, allowed, ...limits }) => {
  const found = places.map((place) => [place, sentencesWith(pattern, place).filter((text) => !allowed?.test(text))]);
  const excess = found.filter(([place, texts]) => texts!.length > (limits[place as Place] ?? 0));
  expect(Object.fromEntries(excess)).toEqual({});
});

test('the subject of a commit is `area: what changes`, in at most 72 characters', ({ skip }) => {
  const subjects = subjectsSince('the subject of a commit is');
  if (subjects === null) return skip('git or its history is not available');
  expect(subjects.filter((subject) => subject.length > 72 || !/^[a-z][\w ,./-]*: \S.*[^.]$/.test(subject))).toEqual([]);
});

const sentences = new Map<string, Partial<Record<Place, string[]>>>();

/** Every text in a place that contains the pattern, with its file. */
function sentencesWith(pattern: RegExp, place: Place): string[] {
  const files = place === 'documents' ? readable.filter((file) => file.endsWith('.md')) : typed;
  return files
    .filter((file) => pattern.test(readSource(file)))
    .flatMap((file) => {
      const texts = sentences.get(file) ?? readSentences(file);
      sentences.set(file, texts);
      return (texts[place] ?? []).filter((text) => pattern.test(text)).map((text) => `${file}: ${text}`);
    });
}

function readSentences(file: string): Partial<Record<Place, string[]>> {
  const source = readSource(file);
  if (file.endsWith('.md')) return { documents: source.replaceAll(/^```.*?^```/gms, '').split('\n') };
  const { program, comments } = parseSync(file, source);
  const strings: string[] = [];
  new Visitor({
    Literal: ({ value }) => void (typeof value === 'string' && strings.push(value)),
    TemplateElement: ({ value }) => void strings.push(value.raw),
    JSXText: ({ value }) => void strings.push(value),
  }).visit(program);
  const place = /^test\/|\.test\.tsx?$|-conformance\.ts$|-test-kit\.ts$/.test(file) ? 'tests' : 'texts';
  return { [place]: strings, comments: comments.map(({ value }) => value.replaceAll(/\s+\*?\s*/g, ' ')) };
}

/** The subjects of the commits that build on the one that added `marker` to this file; null if they are not known. */
function subjectsSince(marker: string): string[] | null {
  const git = (...args: string[]): string =>
    execFileSync('git', args, { cwd: import.meta.dirname, encoding: 'utf8', stdio: 'pipe' }).trim();
  try {
    const first = git('log', '--format=%H', '-S', marker, '--', 'words.test.ts').split('\n').at(-1);
    if (!first) return null;
    return git('log', '--format=%s', '--no-merges', '--ancestry-path', `${first}..HEAD`).split('\n').filter(Boolean);
  } catch {
    return null;
  }
}

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
