import { expect, test } from 'vitest';
import { readLogLine } from './log-line.ts';

test('a JSON line becomes its message, its error and its fields', () => {
  const line = {
    level: 'warn',
    version: '1.2.3',
    time: 'now',
    process: 'api',
    pid: 1,
    msg: 'cannot send',
    err: { message: 'gone' },
    tries: 2,
  };
  expect(readLogLine(JSON.stringify(line))).toEqual({ level: 40, words: 'cannot send: gone (tries=2)' });
});

test('what is not a log record counts as an error and is shown as it is', () => {
  for (const text of ['Error: no such file', '{"not":"a record"}', '{broken']) {
    expect(readLogLine(text)).toEqual({ level: 50, words: text });
  }
});

test('a logged text cannot steer the terminal', () => {
  const line = JSON.stringify({ level: 'error', msg: 'bad\u001b]0;title\u0007 \u202etxt\nnext' });
  expect(readLogLine(line).words).toBe('bad ]0;title   txt next');
});
