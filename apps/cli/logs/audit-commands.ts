import { readFile, rename, writeFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { ApiError, CliError } from '../server/cli-error.ts';
import { addGroup, clientCommand, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { readPieces, type Client } from '../server/http-client.ts';
import { note, print, printObject } from '../terminal/output.ts';

/** What `sluice audit watch` keeps between two calls. */
type Kept = { verifiers: string[]; checkpoint: string };

/** Adds `sluice audit key|watch`. */
export function addAuditCommands(program: Command): void {
  const audit = addGroup(program, 'audit', 'the seal of the event log: its keys, and whether it still continues');

  clientCommand(audit, 'key', 'show the public keys that verify the checkpoints of the log').action(
    async (options: ClientOptions) => {
      for (const key of await readKeys(await connect(options)))
        print(options.json === true ? JSON.stringify({ key }) : key);
    },
  );

  clientCommand(audit, 'watch', 'check that the log continues the checkpoint of the last call, and keep the newest one')
    .option('--file <file>', 'where the checkpoint is kept', 'sluice-audit.json')
    .option(
      '--verifier <key>',
      'a key to trust from now on, as sluice audit key shows it; can be repeated',
      collect,
      [],
    )
    .addHelpText('after', '\nRun it regularly, on a machine that the operator of the server does not control.')
    .action(async (options: ClientOptions & { file: string; verifier?: string[] }) => {
      const client = await connect(options);
      const kept = await readKept(options.file);
      const given = [...(kept?.verifiers ?? []), ...(options.verifier ?? [])];
      const verifiers = [...new Set(given.length > 0 ? given : await readKeys(client))];
      if (given.length === 0) note('Trusting the keys that the server shows. Compare them with those of its operator.');
      const checkpoint = await check(client, verifiers, kept?.checkpoint ?? null);
      await writeKept(options.file, { verifiers, checkpoint: checkpoint.note });
      const { origin, tree, size, root } = checkpoint;
      printObject({ origin, tree, size, root: root.toString('base64') }, options);
    });
}

const collect = (value: string, before: string[] = []): string[] => [...before, value];

/** Returns the newest checkpoint. Throws CliError if the log does not continue the kept one. */
async function check(client: Client, verifiers: readonly string[], kept: string | null) {
  const { followLog } = await import('#libs/seal/follow-log.ts');
  const { openCheckpoint } = await import('#libs/seal/tree-names.ts');
  const { parseVerifier } = await import('#libs/seal/signed-note.ts');
  const keys = verifiers.map((text) => {
    try {
      return parseVerifier(text);
    } catch (error) {
      throw new CliError((error as Error).message, { exitCode: 2, hint: 'Copy a line of sluice audit key.' });
    }
  });
  const source = (path: string, tree: number | undefined): Promise<Buffer | null> => readAudit(client, path, tree);
  try {
    const held = kept === null ? null : openCheckpoint(kept, () => keys);
    const { newest, gaps } = await followLog(source, keys, held);
    for (const { tree, size, lost } of gaps) {
      note(
        `The log went back and began another tree: tree ${tree} ended with ${size} entries, of which ${lost} are lost.`,
      );
    }
    return newest;
  } catch (error) {
    if (error instanceof CliError) throw error;
    throw new CliError(`${(error as Error).message} The kept checkpoint is unchanged.`, {
      hint: 'If it happens again, the log was changed, or you are shown another one. Keep the file: it is the evidence.',
      cause: error,
    });
  }
}

/** A file of the log; null if it does not exist. */
async function readAudit(client: Client, path: string, tree: number | undefined): Promise<Buffer | null> {
  try {
    const response = await client.open('GET', `/v1/audit/${path}`, { query: { tree } });
    const pieces: Uint8Array[] = [];
    for await (const piece of readPieces(response, client.server)) pieces.push(piece);
    return Buffer.concat(pieces);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

async function readKeys(client: Client): Promise<string[]> {
  const keys = await readAudit(client, 'key', undefined);
  return (keys?.toString() ?? '').split('\n').filter((line) => line !== '');
}

async function readKept(file: string): Promise<Kept | null> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Kept;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw new CliError(`${file} cannot be read: ${(error as Error).message}.`, {
      hint: 'Restore the file. Without it, changes of the log before the next call are not noticed.',
    });
  }
}

async function writeKept(file: string, kept: Kept): Promise<void> {
  await writeFile(`${file}.new`, `${JSON.stringify(kept, null, 2)}\n`);
  await rename(`${file}.new`, file);
}
