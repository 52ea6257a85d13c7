import { Command } from 'commander';
import { version } from '#libs/kernel/version.ts';
import { addApplyCommands } from './records/apply-commands.ts';
import { addBatchCommands } from './batches/batch-commands.ts';
import { addCompletionCommand } from './terminal/completion-command.ts';
import { addDoctorCommand } from './server/doctor-command.ts';
import { addEventCommands } from './logs/event-commands.ts';
import { addFileCommands } from './batches/file-commands.ts';
import { addLogCommands } from './logs/log-commands.ts';
import { addLoginCommands } from './server/login-commands.ts';
import { addRecordCommands } from './records/record-commands.ts';
import { addUsageCommand } from './logs/usage-command.ts';
import { addConnectionOptions } from './server/client-command.ts';
import { addOperatorCommands } from './operate/operator-commands.ts';

const exitCodeHelp = `
Exit codes of client commands:
  0    done
  1    an error
  2    wrong usage
  3    the batch has ended, and some of its lines failed
  4    the batch failed, expired or was cancelled
  130  interrupted: what runs on the server goes on

Data goes to stdout, progress and errors to stderr. On a terminal data is a
table, in a pipe one JSON object per line.
Variables: SLUICE_URL, SLUICE_API_KEY, SLUICE_PROFILE.`;

/** Adds the commands that speak HTTP to any server, and to nothing else. */
function addClientCommands(program: Command): void {
  program.version(version, '--version', 'print the release');
  program.addHelpText('after', exitCodeHelp);
  program.commandsGroup('Batches and files:');
  addBatchCommands(program);
  addFileCommands(program);
  program.commandsGroup('What happened, and what it cost:');
  addLogCommands(program);
  addEventCommands(program);
  addUsageCommand(program);
  program.commandsGroup('Server and key:');
  addLoginCommands(program);
  addDoctorCommand(program);
  program.commandsGroup('Records:');
  addRecordCommands(program);
  program.commandsGroup('Records as files:');
  addApplyCommands(program);
  program.commandsGroup('This command line:');
  addCompletionCommand(program);
  program.helpCommand('help [command]', 'explain a command');
}

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
