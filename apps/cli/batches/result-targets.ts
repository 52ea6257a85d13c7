import { constants } from 'node:fs';
import { access, stat } from 'node:fs/promises';
import path from 'node:path';
import { CliError, exitCodes } from '../server/cli-error.ts';
import { unwritableFile } from '../terminal/file-problem.ts';

/**
 * Checks the files that a command will write before it does anything else. Otherwise a problem would only appear after a
 * batch of several hours has ended. `inputs` are files that must not be overwritten. Throws CliError.
 */
export async function checkTargets(
  targets: readonly (string | undefined)[],
  inputs: readonly string[] = [],
): Promise<void> {
  const taken = new Map<string, string>();
  for (const input of inputs) taken.set(await identityOf(input), 'it is the input file');
  for (const target of targets) {
    if (target === undefined) continue;
    const found = await stat(target).catch(() => null);
    if (found?.isDirectory()) throw new CliError(`${target} is a folder. Name a file in it.`);
    // Several outputs can be written to the same device or pipe, such as /dev/null.
    const identity = await identityOf(target);
    if (found === null || found.isFile()) {
      const taker = taken.get(identity);
      if (taker !== undefined) {
        throw new CliError(`${target} cannot be written: ${taker}.`, { exitCode: exitCodes.usage });
      }
      taken.set(identity, 'another option names the same file');
    }
    // The slash at the end requires a folder.
    const written = found === null || found.isFile() ? `${path.dirname(path.resolve(target))}/` : target;
    await access(written, constants.W_OK).catch((error: unknown) => {
      throw unwritableFile(target, error);
    });
  }
}

/** Returns the same value for two names of the same file. */
async function identityOf(file: string): Promise<string> {
  const found = await stat(file, { bigint: true }).catch(() => null);
  return found === null ? path.resolve(file) : `${found.dev} ${found.ino}`;
}
