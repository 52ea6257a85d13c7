import { Option, type Command } from 'commander';
import { clientCommand, addGroup, toCount, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { download } from './download.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { note, printObject, printRows } from '../terminal/output.ts';
import { formatBytes, formatTime } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { barOf, createProgressLine } from '../terminal/progress-line.ts';
import { checkTargets } from './result-targets.ts';
import { upload, type FileObject } from './upload.ts';

const columns: readonly Column<FileObject>[] = [
  ['id', ({ id }) => id],
  ['purpose', ({ purpose }) => purpose],
  ['size', ({ bytes }) => formatBytes(bytes), { right: true }],
  ['created', ({ created_at: at }) => formatTime(at), { spare: 1 }],
  ['name', ({ filename }) => filename],
];
const at = (id: string): string => `/v1/files/${encodeURIComponent(id)}`;

/** Adds `sluice files …`. */
export function addFileCommands(program: Command): void {
  const files = addGroup(program, 'files', 'files on the server: inputs and results of batches');

  clientCommand(files, 'list', 'list files, newest first')
    .option('--purpose <purpose>', 'such as batch or batch_output')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (options: ClientOptions & { purpose?: string; limit: number }) => {
      const client = await connect(options);
      const { purpose, limit } = options;
      printRows(await client.list<FileObject>('/v1/files', { purpose }, limit), columns, options);
    });

  clientCommand(files, 'get <id>', 'show a file').action(async (id: string, options: ClientOptions) => {
    printObject(await (await connect(options)).json<object>('GET', at(id)), options);
  });

  clientCommand(files, 'upload <file>', 'upload a file of any size')
    .addOption(
      new Option('--purpose <purpose>', 'purpose of the file')
        .choices(['batch', 'fine-tune', 'assistants', 'vision', 'user_data', 'evals'])
        .default('batch'),
    )
    .action(async (file: string, options: ClientOptions & { purpose: string }) => {
      const client = await connect(options);
      const line = createProgressLine();
      const onProgress = (bytes: number, of: number): void =>
        line.show(`uploading ${barOf(bytes, of)}${formatBytes(bytes)} of ${formatBytes(of)}`);
      const uploaded = await interruptible(
        (signal) => upload(client, file, { purpose: options.purpose, onProgress, signal }),
        () => 'Repeat the command within an hour to resume: only missing parts of files above 16 MiB are sent.',
      ).finally(() => line.clear());
      printRows([uploaded], columns, options);
    });

  clientCommand(files, 'download <id>', 'download a file to stdout or to a file; resumes an interrupted download')
    .option('-o, --output <file>', 'write to this file instead of stdout')
    .action(async (id: string, options: ClientOptions & { output?: string }) => {
      const client = await connect(options);
      await checkTargets([options.output]);
      const { bytes } = await interruptible(
        (signal) => download(client, id, options.output ?? null, { signal }),
        () => 'The downloaded part is kept. To resume, repeat the command.',
      );
      if (options.output !== undefined) note(`${options.output}: ${formatBytes(bytes)}, SHA-256 checked`);
    });

  clientCommand(files, 'delete <ids...>', 'delete files').action(async (ids: string[], options: ClientOptions) => {
    const client = await connect(options);
    for (const id of ids) {
      await client.json('DELETE', at(id));
      note(`${id} deleted`);
    }
  });
}
