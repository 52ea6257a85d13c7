import { CliError, describeError } from './server/cli-error.ts';
import { cannotWrite, problemOfFile } from './terminal/file-problem.ts';
import { printable } from './terminal/table.ts';
import { createProgram } from './program.ts';

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // EPIPE: the reader has gone away, as in `sluice … | head`, and knows it.
  if (error.code !== 'EPIPE') process.stderr.write(`error: ${cannotWrite('stdout', error).message}\n`);
  process.exit(1);
});
process.stderr.on('error', () => process.exit(1)); // nothing is left to say it on

try {
  await createProgram().parseAsync();
} catch (error) {
  const problem = error instanceof CliError ? error : problemOfFile(error);
  if (problem === null) process.stderr.write(`${await explained(error)}\n`);
  else for (const line of describeError(problem).join('\n').split('\n')) process.stderr.write(`${printable(line)}\n`);
  process.exitCode = problem?.exitCode ?? 1;
}

/** What is said of errors of maintenance: one sentence for what is expected, a stack for anything else. */
async function explained(error: unknown): Promise<string> {
  const { explain } = await import('../standalone/explain.ts');
  const text = explain(error);
  return error instanceof Error && text === error.stack ? text : `error: ${text}`;
}
