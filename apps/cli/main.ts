import { CliError, describeError, exitCodes } from './server/cli-error.ts';
import { unwritableFile, toFileError } from './terminal/file-problem.ts';
import { printable } from './terminal/table.ts';
import { createProgram } from './program.ts';

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // EPIPE: the reader has closed the pipe, as in `sluice … | head`. No message is needed.
  if (error.code !== 'EPIPE') process.stderr.write(`error: ${unwritableFile('stdout', error).message}\n`);
  process.exit(1);
});
process.stderr.on('error', () => process.exit(1)); // there is no stream left for a message

try {
  await createProgram().parseAsync();
} catch (error) {
  const problem = error instanceof CliError ? error : toFileError(error);
  if (problem === null) process.stderr.write(`${await explained(error)}\n`);
  else for (const line of describeError(problem).join('\n').split('\n')) process.stderr.write(`${printable(line)}\n`);
  process.exitCode = problem?.exitCode ?? 1;
  // While Node shuts down in order, it handles no signals, and Ctrl-C that is still held down would change the status.
  if (problem?.exitCode === exitCodes.detached) process.exit();
}

/** Describes an error of a maintenance command: an expected error in one sentence, any other with its stack. */
async function explained(error: unknown): Promise<string> {
  const { explain } = await import('../standalone/explain.ts');
  const text = explain(error);
  return error instanceof Error && text === error.stack ? text : `error: ${text}`;
}
