import { Command } from 'commander';
import { addClientCommands } from './client/add-client-commands.ts';
import { addConnectionOptions } from './client/client-command.ts';
import { addOperatorCommands } from './operator-commands.ts';

/** All commands. An error in what was typed ends the process with status 2, after a hint instead of the whole help. */
export function createProgram(): Command {
  const program = new Command('sluice')
    .description(
      'The command line of Sluice: batches, files, records and logs of any server, and maintenance of your own.',
    )
    .enablePositionalOptions()
    .configureHelp({ subcommandTerm: termOf })
    .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2));
  addClientCommands(program);
  addOperatorCommands(program);
  finish(program, 'sluice');
  return program;
}

/** A command as lists of commands have it: `[options]` after each of them says nothing. */
const termOf = (command: Command): string =>
  [
    command.name(),
    ...command.registeredArguments.map((argument) => {
      const name = argument.name() + (argument.variadic ? '...' : '');
      return argument.required ? `<${name}>` : `[${name}]`;
    }),
  ].join(' ');

function finish(command: Command, path: string): void {
  addConnectionOptions(command);
  command.showHelpAfterError(`  See ${path} --help`);
  for (const each of command.commands) finish(each, `${path} ${each.name()}`);
}
