import { expect, test } from 'vitest';
import { nextCommand } from './run-commands.ts';

const shell = (type: string) => ({
  name: 'Bash',
  kind: 'function' as const,
  parameters: {
    type: 'object',
    properties: { command: { type, items: { type: 'string' } }, reason: { type: 'string' } },
    required: ['command', 'reason'],
  },
});
const asked = (toolResults: number, tools = [shell('string')]) =>
  nextCommand({ lastUserText: 'Run `echo a` and `echo b`.', toolResults, tools, hash: 1 });

test('the commands of a message run one after the other, and then no more', () => {
  expect(asked(0)?.input).toEqual({ command: 'echo a', reason: expect.any(String) });
  expect(asked(1)?.input).toMatchObject({ command: 'echo b' });
  expect(asked(2)).toBeNull();
});

test('a tool that takes a list gets a shell and the command', () => {
  expect(asked(0, [shell('array')])?.input).toMatchObject({ command: ['bash', '-c', 'echo a'] });
});

test('without a shell tool nothing runs', () => {
  expect(asked(0, [])).toBeNull();
});
