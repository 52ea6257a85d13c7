import type { Command } from 'commander';
import { version } from '#libs/kernel/version.ts';
import { addApplyCommands } from './apply-commands.ts';
import { addBatchCommands } from './batch-commands.ts';
import { addCompletionCommand } from './completion-command.ts';
import { addDoctorCommand } from './doctor-command.ts';
import { addEventCommands } from './event-commands.ts';
import { addFileCommands } from './file-commands.ts';
import { addLogCommands } from './log-commands.ts';
import { addLoginCommands } from './login-commands.ts';
import { addRecordCommands } from './record-commands.ts';
import { addUsageCommand } from './usage-command.ts';

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
export function addClientCommands(program: Command): void {
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
