import type { GuardrailCheck } from '#libs/contracts/configs/guardrail-checks.ts';
import { compileSchema, countKeys, extractJson } from './json-checks.ts';
import { LRUCache } from 'lru-cache';
import { RE2JS } from 're2js';
import { GatewayError } from '#libs/kernel/errors.ts';
import { requiredLiterals } from './required-literals.ts';

/** The result of a check. `data` is shown in the results and never contains the text that was checked. */
export type Finding = {
  verdict: boolean;
  data: Readonly<Record<string, unknown>>;
  /** For each text whose URLs are otherwise valid: their hosts, which must have addresses. */
  hosts?: readonly (readonly string[])[];
};

type TextCheckName =
  | 'regexMatch'
  | 'contains'
  | 'wordCount'
  | 'sentenceCount'
  | 'characterCount'
  | 'jsonSchema'
  | 'jsonKeys'
  | 'validUrls'
  | 'containsCode'
  | 'endsWith'
  | 'isAllLowerCase'
  | 'alluppercase';
export type TextCheck = Extract<GuardrailCheck, { name: TextCheckName }>;

const names: ReadonlySet<string> = new Set<TextCheckName>([
  'regexMatch',
  'contains',
  'wordCount',
  'sentenceCount',
  'characterCount',
  'jsonSchema',
  'jsonKeys',
  'validUrls',
  'containsCode',
  'endsWith',
  'isAllLowerCase',
  'alluppercase',
]);
const searching: ReadonlySet<string> = new Set<TextCheckName>(['regexMatch', 'contains']);

export const isTextCheck = (check: GuardrailCheck): check is TextCheck => names.has(check.name);

/** Whether the check searches for something (in all texts as one) instead of checking each text. */
export const isSearch = (check: TextCheck): boolean => searching.has(check.name);

/**
 * Checks one text. Has no time limit itself, see `checkTexts`. Throws invalid_request for a pattern or schema that
 * cannot be used.
 */
export function checkText(check: TextCheck, text: string): Finding {
  switch (check.name) {
    case 'regexMatch': {
      const { rule, not } = check.parameters;
      const matched = compilePattern(rule)(text);
      return { verdict: matched !== not, data: { rule, not, matched } };
    }
    case 'contains': {
      const { words, operator, not } = check.parameters;
      const found = words.filter((word) => text.includes(word));
      const verdict = holds(operator, found.length, words.length);
      return { verdict: verdict !== not, data: { operator, not, found, missing: words.length - found.length } };
    }
    case 'wordCount':
      return inRange(countWords(text), check.parameters);
    case 'sentenceCount':
      return inRange(countSentences(text), check.parameters);
    case 'characterCount':
      return inRange(countCharacters(text), check.parameters);
    case 'jsonSchema': {
      const { schema, not } = check.parameters;
      const validate = compileSchema(schema);
      const value = extractJson(text);
      if (value === undefined) return { verdict: not, data: { not, explanation: 'The text contains no JSON.' } };
      const valid = validate(value);
      if (valid === 'too_deep') return { verdict: false, data: { not, explanation: 'The JSON is nested too deeply.' } };
      return { verdict: valid !== not, data: { not, valid } };
    }
    case 'jsonKeys': {
      const { keys, operator } = check.parameters;
      const value = extractJson(text);
      const present = value === undefined ? 0 : countKeys(value, keys);
      const data = { operator, present, missing: keys.length - present };
      if (value === undefined) return { verdict: false, data: { ...data, explanation: 'The text contains no JSON.' } };
      return { verdict: holds(operator, present, keys.length), data };
    }
    case 'validUrls': {
      const { not, onlyDNS } = check.parameters;
      const urls = urlsOf(text);
      const invalid = urls.filter((url) => !isPublicUrl(url)).length;
      // Like in Portkey, a text without a URL has no valid ones.
      const valid = urls.length > 0 && invalid === 0;
      const finding: Finding = { verdict: valid !== not, data: { not, urls: urls.length, invalid } };
      if (!onlyDNS || !valid) return finding;
      return { ...finding, hosts: [[...new Set(urls.map((url) => new URL(url).hostname))]] };
    }
    case 'containsCode': {
      const { format, not } = check.parameters;
      const found = hasCode(text, format);
      return { verdict: found !== not, data: { format, not, found } };
    }
    case 'endsWith': {
      const { suffix, not } = check.parameters;
      // Like in Portkey, a full stop can follow.
      const matched = text.endsWith(suffix) || text.endsWith(`${suffix}.`);
      return { verdict: matched !== not, data: { suffix, not, matched } };
    }
    case 'isAllLowerCase':
      return inCase(text === text.toLowerCase(), check.parameters);
    case 'alluppercase':
      return inCase(text === text.toUpperCase(), check.parameters);
  }
}

/** Throws invalid_request for a pattern or schema that cannot be used. */
export function prepareTextCheck(check: TextCheck): void {
  if (check.name === 'regexMatch') compilePattern(check.parameters.rule);
  if (check.name === 'jsonSchema') compileSchema(check.parameters.schema);
}

/** Combines the results of a list by `any`, `all` or `none`. */
export function holds(operator: 'any' | 'all' | 'none', found: number, total: number): boolean {
  if (operator === 'any') return found > 0;
  return operator === 'all' ? found === total : found === 0;
}

function inRange(
  count: number,
  { min, max, not }: { min: number | undefined; max: number | undefined; not: boolean },
): Finding {
  const inside = count >= (min ?? 0) && count <= (max ?? Number.POSITIVE_INFINITY);
  return { verdict: inside !== not, data: { count, min: min ?? null, max: max ?? null, not } };
}

// Counted in a loop, because a pattern with /g would make a list of all the words of a long text.
function countWords(text: string): number {
  let count = 0;
  let inWord = false;
  for (const character of text) {
    const space = /\s/u.test(character);
    if (!space && !inWord) count += 1;
    inWord = !space;
  }
  return count;
}

/** A sentence ends with `.`, `!` or `?` before white space or at the end of the text, so `3.14` does not end one. */
function countSentences(text: string): number {
  let count = 0;
  let open = false;
  let ending = false;
  for (const character of text) {
    if (/\s/u.test(character)) {
      if (ending) count += 1;
      if (ending) open = false;
      ending = false;
    } else {
      ending = open && /[.!?。！？]/u.test(character);
      open = true;
    }
  }
  return open ? count + 1 : count;
}

function countCharacters(text: string): number {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}

const inCase = (matched: boolean, { not }: { not: boolean }): Finding => ({
  verdict: matched !== not,
  data: { not, matched },
});

const urlsMax = 1_000;

function urlsOf(text: string): string[] {
  const urls: string[] = [];
  for (const match of text.matchAll(/\bhttps?:\/\/[^\s<>"'`)\]}]{1,2048}/giu)) {
    urls.push(withoutPunctuation(match[0]));
    if (urls.length === urlsMax) break;
  }
  return urls;
}

/**
 * Removes trailing punctuation that belongs to the sentence. This is a loop because a regular expression would take
 * quadratic time.
 */
function withoutPunctuation(url: string): string {
  let end = url.length;
  while (end > 0 && '.,;:!?'.includes(url[end - 1] ?? ' ')) end -= 1;
  return url.slice(0, end);
}

/** Checks only the syntax: a host with a dot whose last part has letters, or an address. Nothing is resolved. */
function isPublicUrl(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { hostname } = new URL(text);
  return (
    hostname.startsWith('[') ||
    /^\d+(\.\d+){3}$/.test(hostname) ||
    /^[^.]+(\.[^.]+)*\.(\p{L}{2,}|xn--[a-z0-9-]+)$/iu.test(hostname)
  );
}

/** The names that fences use for a language that has several. */
const otherNames: readonly (readonly string[])[] = [
  ['javascript', 'js', 'jsx', 'mjs', 'cjs', 'node'],
  ['typescript', 'ts', 'tsx'],
  ['python', 'py', 'python3'],
  ['c#', 'csharp', 'cs'],
  ['c++', 'cpp', 'cxx', 'cc'],
  ['go', 'golang'],
  ['ruby', 'rb'],
  ['rust', 'rs'],
  ['kotlin', 'kt', 'kts'],
  ['bash', 'sh', 'shell', 'zsh'],
  ['sql', 'mysql', 'postgresql', 'postgres', 'plsql', 'tsql', 'sqlite'],
  ['html', 'htm'],
  ['yaml', 'yml'],
  ['perl', 'pl'],
  ['powershell', 'ps1', 'pwsh'],
];

const namesOf = (language: string): readonly string[] =>
  otherNames.find((names) => names.includes(language)) ?? [language];

/**
 * Whether a text has a fenced block (CommonMark 4.5) of this language, according to its fence, in upper or lower case.
 * A block that was cut off counts as well. Takes linear time.
 */
function hasCode(text: string, language: string): boolean {
  const wanted = namesOf(language.trim().toLowerCase());
  let fence: string | null = null;
  for (let start = 0; start <= text.length;) {
    const end = text.indexOf('\n', start);
    const stop = end === -1 ? text.length : end;
    // Longer than any fence with its language.
    const line = text.slice(start, Math.min(stop, start + 200)).trim();
    const marks = /^(?:`{3,}|~{3,})/.exec(line)?.[0];
    if (marks !== undefined) {
      const named = line.slice(marks.length).trim();
      if (fence === null) {
        const [name = ''] = named.toLowerCase().split(/[\s,{:]/);
        if (wanted.includes(name)) return true;
        fence = marks;
      } else if (named === '' && marks.startsWith(fence)) fence = null;
    }
    if (end === -1) return false;
    start = end + 1;
  }
  return false;
}

/** Whether the expression matches in a text. */
export type Pattern = (text: string) => boolean;

// Compiling takes milliseconds, and most calls use the same patterns as the call before.
const compiled = new LRUCache<string, Pattern>({ max: 500 });

// Characters times instructions. For a longer text the engine's cache grows to up to 8 MB, for each of hundreds of
// expressions, and would be incomplete if the search was stopped.
const rememberedWork = 20_000;

/**
 * Compiles a tenant's regular expression with RE2. Its time is linear in the text (SEC-5), but also in the expression:
 * a repetition of a thousand over a long text takes minutes, so the caller must limit the time. Throws invalid_request
 * for features that RE2 does not support (look-around, back references) and for syntax errors.
 * @testOnly
 */
export function compilePattern(rule: string): Pattern {
  const known = compiled.get(rule);
  if (known) return known;
  const pattern = createPattern(rule);
  compiled.set(rule, pattern);
  return pattern;
}

function createPattern(rule: string): Pattern {
  let regex: RE2JS | null = compile(rule);
  const literals = requiredLiterals(rule);
  return (text) => {
    if (literals !== null && !literals.some((literal) => text.includes(literal))) return false;
    const engine = regex ?? compile(rule);
    // Returned to the cache only after a complete search, because the search can be stopped in the middle.
    regex = null;
    const found = engine.test(text);
    if (text.length * engine.programSize() <= rememberedWork) regex = engine;
    return found;
  };
}

function compile(rule: string): RE2JS {
  try {
    return RE2JS.compile(rule);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message.slice(0, 200) : 'it cannot be parsed';
    throw new GatewayError(
      'invalid_request',
      'invalid_value',
      `The rule of a regexMatch check is not a valid RE2 regular expression (which has no lookaround and no backreferences): ${why}.`,
      { param: 'rule', cause },
    );
  }
}
