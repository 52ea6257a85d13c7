import { createWriteStream } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { CliError, exitCodes } from './cli-error.ts';

/**
 * Runs `use` with an input file. `-` stands for standard input, which is written to a temporary file first: the lines are
 * checked before anything is sent, so they are read twice. Throws CliError for a terminal.
 */
export async function withInputFile<Result>(file: string, use: (file: string) => Promise<Result>): Promise<Result> {
  if (file !== '-') return await use(file);
  if (process.stdin.isTTY) {
    const message = 'Standard input is a terminal. Pipe the lines in: sluice batch run - < requests.jsonl';
    throw new CliError(message, { exitCode: exitCodes.usage });
  }
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-input-'));
  try {
    const written = path.join(folder, 'stdin.jsonl');
    await pipeline(process.stdin, createWriteStream(written, { mode: 0o600 }));
    return await use(written);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
