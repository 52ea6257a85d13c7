import { Command } from 'commander';
import { addClientCommands } from './client/add-client-commands.ts';
import { CliError, describeError } from './client/cli-error.ts';
import { cannotWrite } from './client/file-problem.ts';
import { printable } from './client/output.ts';
import { addOperatorCommands } from './operator-commands.ts';

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // EPIPE: the reader has gone away, as in `sluice … | head`, and knows it.
  if (error.code !== 'EPIPE') process.stderr.write(`error: ${cannotWrite('stdout', error).message}\n`);
  process.exit(1);
});
process.stderr.on('error', () => process.exit(1)); // nothing is left to say it on

const program = new Command('sluice')
  .description(
    'The command line of Sluice: batches, files, records and logs of any server, and maintenance of your own.',
  )
  .enablePositionalOptions()
  .showHelpAfterError()
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2));

addClientCommands(program);
program.commandsGroup('Maintenance (with the database in DATABASE_URL, or the one of the data directory):');
addOperatorCommands(program);

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof CliError) {
    for (const line of describeError(error).join('\n').split('\n')) process.stderr.write(`${printable(line)}\n`);
  } else process.stderr.write(`${await explained(error)}\n`);
  process.exitCode = error instanceof CliError ? error.exitCode : 1;
}

async function explained(error: unknown): Promise<string> {
  const { explain } = await import('../standalone/explain.ts');
  return explain(error);
}
