import type { Command } from 'commander';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { recordKinds } from './records/record-kinds.ts';
import { createProgram } from './program.ts';

const folder = path.resolve(import.meta.dirname, '../../test/fixtures/command-line');

/** Every command with the words that invoke it. */
const commandsOf = (command: Command, words: string[] = []): { command: Command; words: string[] }[] => [
  { command, words },
  ...command.commands.flatMap((each) => commandsOf(each, [...words, each.name()])),
];

/** The words of all commands that can be run. A group whose options make it a command counts as one. */
const callable = (): string[] =>
  commandsOf(createProgram())
    .filter(({ command }) => command.commands.length === 0 || command.options.length > 0)
    .map(({ words }) => words.join(' '))
    .filter((words) => words !== '');

test('the help of every command is this text', async () => {
  let text = '';
  for (const { command, words } of commandsOf(createProgram())) {
    text += `$ sluice ${[...words, '--help'].join(' ')}\n`;
    command.configureOutput({ writeOut: (part) => (text += part), getOutHelpWidth: () => 80 });
    command.outputHelp();
    text += '\n';
  }
  expect(text.split('\n').filter((line) => line.length > 80 && !line.startsWith('Maintenance'))).toEqual([]);
  await expect(text).toMatchFileSnapshot(path.join(folder, 'help.txt'));
});

test('no command or option has two names for one thing, and every one is described', () => {
  const all = commandsOf(createProgram());
  const undescribed = all.flatMap(({ command, words }) => [
    ...(command.description() === '' ? [words.join(' ')] : []),
    ...command.options
      .filter(({ description }) => description === '')
      .map(({ flags }) => `${words.join(' ')} ${flags}`),
  ]);
  expect(undescribed).toEqual([]);
  const short = all.flatMap(({ command }) => command.options.filter((option) => option.short !== undefined));
  expect(new Set(short.map(({ flags }) => flags))).toEqual(
    new Set(['-o, --output <file>', '-f, --file <file>', '-f, --file <folder>', '-d, --dir <folder>']),
  );
});

test('every command takes --json, so that scripts need not know which', () => {
  const withoutJson = commandsOf(createProgram())
    .filter(({ command }) => command.commands.length === 0 && !command.options.some(({ long }) => long === '--json'))
    .map(({ words }) => words.join(' '));
  // A shell reads the output of this command.
  expect(withoutJson).toEqual(['completion']);
});

/** Commands without a transcript, and the reason. */
const withoutTranscript: Readonly<Record<string, string>> = {
  restore: 'runs while no process of Sluice does: test/integration/start',
  'keys forget-master': 'as restore',
  'audit key': 'keys differ from run to run: test/api/audit-seal.test.ts',
  'audit watch': 'as audit key',
  'audit prove': 'as audit export',
  'audit export': 'needs a sealed log: test/integration/event-log/audit-export.test.ts',
};

/**
 * Labels (which have an ID) and configs (which have a slug) represent all kinds: the same code defines the commands of the
 * others.
 */
const ofOtherKinds = recordKinds
  .filter(({ command }) => !['labels', 'configs'].includes(command))
  .flatMap(({ command }) => ['list', 'get', 'create', 'update', 'delete'].map((verb) => `${command} ${verb}`));

test('every command has a transcript of what it prints, or a reason why not', () => {
  const names = callable();
  const called = new Set<string>();
  for (const file of readdirSync(folder).filter((name) => name !== 'help.txt')) {
    for (const [, line = ''] of readFileSync(path.join(folder, file), 'utf8').matchAll(/^\$ sluice (.*)$/gm)) {
      const words = line.split(' ');
      const [longest] = names
        .filter((name) => name.split(' ').every((word, at) => word === words[at]))
        .toSorted((a, b) => b.length - a.length);
      if (longest !== undefined) called.add(longest);
    }
  }
  const excepted = Object.keys(withoutTranscript);
  expect(names.filter((name) => !called.has(name) && !excepted.includes(name) && !ofOtherKinds.includes(name))).toEqual(
    [],
  );
  // An exception that is no longer needed must be removed.
  expect(excepted.filter((name) => called.has(name) || !names.includes(name))).toEqual([]);
});
