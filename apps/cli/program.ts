import { Command } from 'commander';
import { version } from '#libs/kernel/version.ts';
import { addApplyCommands } from './records/apply-commands.ts';
import { addAuditCommands } from './logs/audit-commands.ts';
import { addBatchCommands } from './batches/batch-commands.ts';
import { addCompletionCommand } from './terminal/completion-command.ts';
import { addDoctorCommand } from './server/doctor-command.ts';
import { addEventCommands } from './logs/event-commands.ts';
import { addFileCommands } from './batches/file-commands.ts';
import { addLogCommands } from './logs/log-commands.ts';
import { addLoginCommands } from './server/login-commands.ts';
import { addReplayCommand } from './batches/replay-traffic.ts';
import { addImportCommands } from './import/import-commands.ts';
import { addRecordCommands } from './records/record-commands.ts';
import { addUsageCommand } from './logs/usage-command.ts';
import { addConnectionOptions } from './server/client-command.ts';
import { addOperatorCommands } from './operate/operator-commands.ts';

const exitCodeHelp = `
Exit codes of client commands:
  0    done
  1    an error
  2    wrong usage
  3    the batch ended, and some of its lines failed
  4    the batch failed, expired or was cancelled
  130  interrupted; work on the server continues

Data goes to stdout, progress and errors to stderr. A terminal gets a table,
a pipe one JSON object per line.
Variables: SLUICE_URL, SLUICE_API_KEY, SLUICE_PROFILE.`;

/** Adds the commands that only use HTTP, with any server. */
function addClientCommands(program: Command): void {
  program.version(version, '--version', 'print the release');
  program.addHelpText('after', exitCodeHelp);
  program.commandsGroup('Batches and files:');
  addBatchCommands(program);
  addFileCommands(program);
  addReplayCommand(program);
  program.commandsGroup('History and costs:');
  addLogCommands(program);
  addEventCommands(program);
  addAuditCommands(program);
  addUsageCommand(program);
  program.commandsGroup('Server and API key:');
  addLoginCommands(program);
  addDoctorCommand(program);
  program.commandsGroup('Records:');
  addRecordCommands(program);
  program.commandsGroup('Records as files:');
  addApplyCommands(program);
  addImportCommands(program);
  program.commandsGroup('Shell:');
  addCompletionCommand(program);
  program.helpCommand('help [command]', 'show the help of a command');
}

/** All commands. Wrong usage ends the process with status 2, after a hint instead of the whole help. */
export function createProgram(): Command {
  const program = new Command('sluice')
    .description(
      'The command line of Sluice: batches, files, records and logs of any server, and maintenance of your own.',
    )
    .enablePositionalOptions()
    .configureHelp({ subcommandTerm: describeTerm })
    .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2));
  addClientCommands(program);
  addOperatorCommands(program);
  finish(program, 'sluice');
  return program;
}

/** The term for a command in a list of commands. `[options]` after each of them would not add information. */
const describeTerm = (command: Command): string =>
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
