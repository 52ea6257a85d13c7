import fc from 'fast-check';
import { RE2JS } from 're2js';
import { expect, test } from 'vitest';
import { createRedaction } from './redact-body.ts';

const card = '4111-1111';
const rules = [String.raw`\b\d{4}-\d{4}\b`, 'hunter2', String.raw`M\x{fc}ller`, String.raw`\d{16}`];
const redact = createRedaction(rules);
const parsed = (text: string): unknown => JSON.parse(redact(text));

/** A JSON text in which every character of `text` is written as an escape. */
const escaped = (text: string): string => {
  const codes = Array.from(text, (character) => character.charCodeAt(0).toString(16).padStart(4, '0'));
  return `"${codes.map((code) => `\\u${code}`).join('')}"`;
};

test.each([
  ['behind a line break', JSON.stringify({ content: `card:\n${card}` }), { content: 'card:\n[redacted]' }],
  ['behind a tab', JSON.stringify({ content: `card:\t${card}` }), { content: 'card:\t[redacted]' }],
  ['written as escapes', `{"content":${escaped(card)}}`, { content: '[redacted]' }],
  ['of other letters', '{"content":"Herr M\\u00fcller"}', { content: 'Herr [redacted]' }],
  ['in a member name', JSON.stringify({ [card]: 1 }), { '[redacted]': 1 }],
  ['as a number', '{"card":4111111111111111}', { card: '[redacted]' }],
  ['in a member that the next one replaces', `{"a":"hunter2","a":"b"}`, { a: 'b' }],
  [
    'in the arguments of a tool call',
    JSON.stringify({ arguments: `{"card":${escaped(card)}}` }),
    { arguments: '{"card":"[redacted]"}' },
  ],
  ['that is a random password', '{"password":"xK9#mQ2$vL7z"}', { password: '[redacted]' }],
])('a match %s is not stored', (_where, text, left) => {
  expect(parsed(text)).toEqual(left);
  expect(redact(text)).not.toContain('hunter2');
});

test('what has no match stays as it is written', () => {
  const text = '{ "a" : [1.0, 123456789.5e3, "\\u0041", "\\/", true, null], "a": {"token": "Hello", "": ""} }';
  expect(redact(text)).toBe(text);
  expect(redact('plain text, 12 of it\n')).toBe('plain text, 12 of it\n');
});

test('the pieces of a stream are searched together', () => {
  const event = (delta: object) => `event: x\ndata: ${JSON.stringify(delta)}\n\n`;
  const pieces = [`card ${card.slice(0, 3)}`, card.slice(3, 6), `${card.slice(6)}.`];
  const chat = pieces.map((content) => event({ choices: [{ index: 0, delta: { content } }] })).join('');
  expect(redact(`${chat}data: [DONE]\n\n`)).toBe(
    ['card [redacted].', '', ''].map((content) => event({ choices: [{ index: 0, delta: { content } }] })).join('') +
      'data: [DONE]\n\n',
  );
  // The pieces of two texts that arrive alternately are not mixed.
  const inTurns = pieces.flatMap((delta) =>
    [0, 1].map((output_index) => event({ type: 'x.delta', output_index, delta })),
  );
  expect(redact(inTurns.join(''))).not.toMatch(/-1|1-|4111/);
  // One text over several lines.
  expect(redact(`data: {"content":\ndata: "${card}"}\n\n`)).toBe('data: {"content":\ndata: "[redacted]"}\n\n');
});

test('lines of JSON, plain text and broken JSON are searched as well', () => {
  expect(redact(`{"a":${escaped(card)}}\n{"b":"\\n${card}"}\n`)).toBe('{"a":"[redacted]"}\n{"b":"\\n[redacted]"}\n');
  expect(redact(`name: x\ncard: ${card}\n`)).toBe('name: x\ncard: [redacted]\n');
  expect(redact(`{"content":${escaped(card)}`)).toBe('{"content":"[redacted]"');
});

test('a rule that matches its own replacement leaves nothing, and takes no long time', () => {
  for (const greedy of ['x*', '.', String.raw`\w+`, 'redacted'])
    expect(createRedaction([greedy])(JSON.stringify({ a: `y${'redacted'.repeat(20_000)}` }))).not.toContain('yr');
});

test('a text with escapes in escapes is not decoded for ever', () => {
  const text = `\\u005c${'u005c'.repeat(100_000)}`;
  expect(redact(JSON.stringify({ a: text }))).toBe('{"a":"[redacted]"}');
  const deep = `${'['.repeat(100_000)}"${card}"${']'.repeat(100_000)}`;
  expect(redact(deep)).toBe(deep.replace(card, '[redacted]'));
});

// Every kind of body: any JSON, with matches in names, numbers, texts, escapes, and JSON within texts.
const match = fc.constantFrom(card, 'hunter2', 'Müller', '4111111111111111', '1234-5678-9012');
const glue = fc.constantFrom('', ' ', '\n', '\t', 'x', '\\', '"', '\\n', '[redacted]', '4', '-', '{', '}');
const matchingText = fc.tuple(glue, match, glue, fc.string(), glue).map((parts) => parts.join(''));
const { json } = fc.letrec<{ json: unknown }>((tie) => ({
  json: fc.oneof(
    { maxDepth: 4 },
    matchingText,
    fc.constantFrom(4111111111111111, 5, true, null),
    fc.array(tie('json'), { maxLength: 3 }),
    fc.dictionary(fc.oneof(matchingText, fc.string()), tie('json'), { maxKeys: 3 }),
    tie('json').map((value) => JSON.stringify(value)),
  ),
}));
const patterns = rules.map((rule) => RE2JS.compile(rule));

/** Strings, member names and numbers, including those of JSON in strings. */
function* decoded(value: unknown): Generator<string> {
  if (typeof value === 'number') yield String(value);
  if (typeof value === 'string') {
    yield value;
    if (/^\s*[[{"]/.test(value)) yield* decoded(parseOr(value));
  }
  if (typeof value !== 'object' || value === null) return;
  for (const [name, member] of Object.entries(value)) {
    yield name;
    yield* decoded(member);
  }
}
function parseOr(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
const matches = (texts: Iterable<string>): string[] =>
  [...texts].filter((text) => patterns.some((pattern) => pattern.test(text)));
/** The text with some of its letters and digits written as escapes. */
const spell = (text: string, seed: number): string =>
  text.replaceAll(/(?<!\\|\\u[\da-f]{0,3})[0-9A-Zac-eg-mo-qsv-z]/g, (character, at: number) =>
    (at * 7 + seed) % 3 === 0 ? `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}` : character,
  );

test('no decoded text of a stored body matches a rule, however it was written', () => {
  fc.assert(
    fc.property(json, fc.nat({ max: 2 }), (value, seed) => {
      const strings = JSON.stringify(value).replaceAll(/"(?:[^"\\]|\\.)*"/g, (text) => spell(text, seed));
      expect(JSON.parse(strings)).toEqual(value);
      const left = redact(strings);
      expect(matches(decoded(JSON.parse(left)))).toEqual([]);
    }),
  );
});

test('no text that a stored stream adds up to matches a rule, wherever it was cut', () => {
  fc.assert(
    fc.property(
      fc.array(matchingText, { maxLength: 4 }),
      fc.infiniteStream(fc.integer({ min: 1, max: 6 })),
      (texts, cuts) => {
        let whole = texts.join(' ');
        let body = '';
        while (whole !== '') {
          const length = cuts.next().value ?? 1;
          body += `data: ${JSON.stringify({ type: 'delta', delta: whole.slice(0, length) })}\n\n`;
          whole = whole.slice(length);
        }
        const deltas = [...redact(body).matchAll(/^data: (.*)$/gm)].map(
          ([, data = '']) => JSON.parse(data) as { delta: string },
        );
        expect(matches([deltas.map(({ delta }) => delta).join('')])).toEqual([]);
      },
    ),
  );
});
