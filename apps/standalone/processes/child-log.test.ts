import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { createChildLog } from './child-log.ts';

function setUp(options: { lineLengthMax?: number; warningsMax?: number } = {}) {
  const written: string[] = [];
  const shown: string[] = [];
  let time = 0;
  const file = { file: 'app.log', write: (text: string) => void written.push(text), close: () => {} };
  const log = createChildLog({ name: 'app', file, onWarning: (text) => shown.push(text), now: () => time, ...options });
  return { log, written, shown, at: (ms: number) => (time = ms) };
}

const record = (level: string, msg: string) => JSON.stringify({ level, msg });

test('every line goes to the file, warnings and errors are shown as well', () => {
  const { log, written, shown } = setUp();
  for (const line of [record('info', 'started'), record('warn', 'slow'), record('error', 'broken')]) log.line(line);
  expect(written).toHaveLength(3);
  expect(shown).toEqual(['app: slow', 'app: broken']);
});

test('a character that is cut by the pipe arrives whole', async () => {
  const { log, written } = setUp();
  const stream = new PassThrough();
  log.attach(stream, null);
  for (const byte of Buffer.from('größe\nzweite')) stream.write(Buffer.of(byte));
  stream.end();
  await expect.poll(() => written).toEqual(['größe\n', 'zweite\n']);
});

test('a line without end is cut, so that memory stays bounded', async () => {
  const { log, written } = setUp({ lineLengthMax: 10 });
  const stream = new PassThrough();
  log.attach(stream);
  stream.end('x'.repeat(100));
  await expect.poll(() => written).toEqual([`${'x'.repeat(10)}…\n`]);
});

test('a flood of warnings is shown up to a limit and then mentioned once, until the next ten seconds', () => {
  const { log, shown, written, at } = setUp({ warningsMax: 2 });
  for (let number = 0; number < 5; number += 1) log.line(record('warn', `warning ${number}`));
  expect(shown).toEqual(['app: warning 0', 'app: warning 1', 'app: more warnings are in app.log']);
  at(10_000);
  log.line(record('warn', 'later'));
  expect(shown.at(-1)).toBe('app: later');
  expect(written).toHaveLength(6);
});

test('the same warning again is not shown again', () => {
  const { log, shown } = setUp();
  for (let number = 0; number < 3; number += 1) log.line(record('warn', 'no database'));
  expect(shown).toEqual(['app: no database']);
});

test('the last lines are those of the child that was attached last', () => {
  const { log } = setUp();
  log.line(record('info', 'first life'));
  log.attach(null);
  log.line(record('info', 'second life'));
  expect(log.lastLines()).toEqual(['second life']);
});
