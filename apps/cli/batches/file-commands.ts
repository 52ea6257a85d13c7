import { Option, type Command } from 'commander';
import { clientCommand, groupOf, toCount, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { download } from './download.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { note, printObject, printRows } from '../terminal/output.ts';
import { bytesOf, timeOf } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { barOf, createProgressLine } from '../terminal/progress-line.ts';
import { checkTargets } from './result-targets.ts';
import { upload, type FileObject } from './upload.ts';

const columns: readonly Column<FileObject>[] = [
  ['id', ({ id }) => id],
  ['purpose', ({ purpose }) => purpose],
  ['size', ({ bytes }) => bytesOf(bytes), { right: true }],
  ['created', ({ created_at: at }) => timeOf(at), { spare: 1 }],
  ['name', ({ filename }) => filename],
];
const at = (id: string): string => `/v1/files/${encodeURIComponent(id)}`;

/** Adds `sluice files …`. */
export function addFileCommands(program: Command): void {
  const files = groupOf(program, 'files', 'files of the server: inputs and results of batches');

  clientCommand(files, 'list', 'list files, newest first')
    .option('--purpose <purpose>', 'such as batch or batch_output')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (options: ClientOptions & { purpose?: string; limit: number }) => {
      const client = await connect(options);
      const { purpose, limit } = options;
      printRows(await client.list<FileObject>('/v1/files', { purpose }, limit), columns, options);
    });

  clientCommand(files, 'get <id>', 'show what is known of a file').action(
    async (id: string, options: ClientOptions) => {
      printObject(await (await connect(options)).json<object>('GET', at(id)), options);
    },
  );

  clientCommand(files, 'upload <file>', 'upload a file, whatever its size')
    .addOption(
      new Option('--purpose <purpose>', 'what it is for')
        .choices(['batch', 'fine-tune', 'assistants', 'vision', 'user_data', 'evals'])
        .default('batch'),
    )
    .action(async (file: string, options: ClientOptions & { purpose: string }) => {
      const client = await connect(options);
      const line = createProgressLine();
      const onProgress = (bytes: number, of: number): void =>
        line.show(`uploading ${barOf(bytes, of)}${bytesOf(bytes)} of ${bytesOf(of)}`);
      const uploaded = await interruptible(
        (signal) => upload(client, file, { purpose: options.purpose, onProgress, signal }),
        () => 'Run it again: a file of more than 16 MiB goes on where it stopped, within an hour.',
      ).finally(() => line.clear());
      printRows([uploaded], columns, options);
    });

  clientCommand(files, 'download <id>', 'download a file to stdout, or to a file; a broken download goes on')
    .option('-o, --output <file>', 'write it to this file instead of stdout')
    .action(async (id: string, options: ClientOptions & { output?: string }) => {
      const client = await connect(options);
      await checkTargets([options.output]);
      const { bytes } = await interruptible(
        (signal) => download(client, id, options.output ?? null, { signal }),
        () => 'What came is kept. The same command goes on.',
      );
      if (options.output !== undefined) note(`${options.output}: ${bytesOf(bytes)}, SHA-256 checked`);
    });

  clientCommand(files, 'delete <ids...>', 'delete files').action(async (ids: string[], options: ClientOptions) => {
    const client = await connect(options);
    for (const id of ids) {
      await client.json('DELETE', at(id));
      note(`${id} deleted`);
    }
  });
}
