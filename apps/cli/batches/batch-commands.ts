import { createWriteStream } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { Option, type Command } from 'commander';
import { followResults } from './follow-results.ts';
import { deliverResults, explainFailures, noteFailureCommands, type ResultOptions } from './batch-results.ts';
import { batchColumns, describeEnd, exitCodeFor, summarise } from './describe-batch.ts';
import { dryRunBatch } from './dry-run-batch.ts';
import { CliError, exitCodes } from '../server/cli-error.ts';
import { clientCommand, addGroup, toCount, toMaximum, toPairs, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import type { Client } from '../server/http-client.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { note, printObject, printRows, showsTable } from '../terminal/output.ts';
import { formatCount } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { runBatch, toBounds, type BatchOptions, type RunOptions } from './run-batch.ts';
import { verifyBatch } from './verify-batch.ts';
import { readBatch, watchBatch, type Batch } from './watch-batch.ts';

type Line = {
  id: string;
  custom_id: string | null;
  outcome: string;
  status_code: number | null;
  error: { code: string | null; message: string | null } | null;
  model: string | null;
};
const lineColumns: readonly Column<Line>[] = [
  ['line', ({ id }) => id],
  ['custom id', ({ custom_id: id }) => id],
  ['outcome', ({ outcome }) => outcome],
  ['status', ({ status_code: status }) => status],
  ['model', ({ model }) => model, { spare: 1 }],
  ['error', ({ error }) => error?.message ?? error?.code],
];

type LineInFull = { id: string; line: number; custom_id: string | null; outcome: string } & Record<string, unknown>;

/** The most important members first, long ones last. The ID is left out, because it is the line number. */
function inOrder({ id: _id, line, custom_id, outcome, request, result, log, ...rest }: LineInFull): object {
  return { line, custom_id, outcome, ...rest, request, result, log };
}

const at = (id: string, rest = ''): string => `/v1/batches/${encodeURIComponent(id)}${rest}`;

/** Adds `sluice batch …`. */
export function addBatchCommands(program: Command): void {
  const batch = addGroup(program, 'batch', 'run and manage batches');
  addRunCommands(batch);
  addReadCommands(batch);
  addChangeCommands(batch);
  addLineCommands(batch);
}

function addRunCommands(batch: Command): void {
  withResults(
    withTarget(clientCommand(batch, 'run <file>', 'check, upload, submit and watch a batch, then deliver its results')),
  )
    .addOption(new Option('--window <window>', 'time limit of the batch').choices(['immediate', '24h']).default('24h'))
    .option('--metadata <name=value>', 'metadata of the batch; can be repeated', toPairs)
    .addOption(
      new Option('--on-budget <what>', 'what to do with lines when a budget is used up').choices(['wait', 'fail']),
    )
    .addOption(
      new Option('--on-invalid-line <what>', 'whether an invalid request fails the batch or only its line').choices([
        'fail_batch',
        'fail_line',
      ]),
    )
    .option(
      '--priority <number>',
      'batches of the workspace with a higher number come first',
      toCount({ min: -10, max: 10 }),
    )
    .option(
      '--validate-outputs <retries>',
      'check answers against the JSON Schema of their request, and call a line again up to this often',
      toCount({ min: 0, max: 5 }),
    )
    .option('--max-cost <dollars>', 'stop the batch before it costs more', toMaximum)
    .option('--max-error-rate <share>', 'stop the batch when a larger share of its lines fails, such as 0.1', toMaximum)
    .addOption(new Option('--on-bound <what>', 'what to do with the batch at its maximum').choices(['pause', 'cancel']))
    .option('--again', 'create another batch, even if the same file and options already created one')
    .option('--detach', 'print the batch without waiting for its end')
    .addHelpText(
      'after',
      '\nUse - as <file> to read standard input.\n\nAfter an interruption, run the same command again: the same file and options\nresume the same batch. Ctrl-C does not cancel it.',
    )
    .action(async (file: string, options: RunOptions) => {
      await withInputFile(file, (input) => runBatch(input, options));
    });

  withTarget(clientCommand(batch, 'dry-run <file>', 'show what a batch would do and cost, without creating it'))
    .option('--metadata <name=value>', 'metadata of the batch; can be repeated', toPairs)
    .option('--max-cost <dollars>', 'compare the cost with this maximum', toMaximum)
    .action(async (file: string, options: ClientOptions & BatchOptions) => {
      await withInputFile(file, (input) => dryRunBatch(input, { ...options, window: '24h' }));
    });
}

function addReadCommands(batch: Command): void {
  clientCommand(batch, 'list', 'list batches, newest first')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (options: ClientOptions & { limit: number }) => {
      const client = await connect(options);
      printRows(await client.list<Batch>('/v1/batches', {}, options.limit), batchColumns, options);
    });

  clientCommand(batch, 'get <id>', 'show a batch').action(async (id: string, options: ClientOptions) => {
    const found = await readBatch(await connect(options), id);
    printObject(showsTable(options) ? summarise(found) : found, options);
    if (showsTable(options)) for (const problem of describeEnd(found).slice(1)) note(problem);
  });

  clientCommand(batch, 'watch <id>', 'show the progress of a batch until it ends; Ctrl-C does not cancel it').action(
    async (id: string, options: ClientOptions) => {
      const client = await connect(options);
      const ended = await interruptible(
        (signal) => watchBatch(client, id, signal),
        () => `The batch continues. To resume watching: sluice batch watch ${id}`,
      );
      printRows([ended], batchColumns, options);
      for (const problem of describeEnd(ended).slice(1)) note(problem);
      await explainFailures(client, ended);
      if (ended.output_file_id !== null) note(`To get the answers: sluice batch results ${id} -o FILE`);
      noteFailureCommands(ended);
      process.exitCode = exitCodeFor(ended);
    },
  );

  withResults(clientCommand(batch, 'results <id>', 'download the results of a batch'))
    .option('--follow', 'print answers and failed lines to stdout as they arrive, until the batch ends')
    .option('--after <cursor>', 'with --follow: continue after this position')
    .action(async (id: string, options: ClientOptions & ResultOptions & { follow?: true; after?: string }) => {
      const client = await connect(options);
      if (options.follow === true) await printFollowed(client, id, options);
      else await deliverResults(client, await readBatch(client, id), options);
    });
}

async function printFollowed(client: Client, id: string, options: ResultOptions & { after?: string }): Promise<void> {
  if (options.output !== undefined || options.errors !== undefined)
    throw new CliError('--follow writes to stdout. Use it without --output and --errors.', {
      exitCode: exitCodes.usage,
    });
  let cursor = options.after;
  await interruptible(
    (signal) => followResults(client, id, cursor, { signal, onCursor: (found) => (cursor = found) }),
    () => `To resume: sluice batch results ${id} --follow${cursor === undefined ? '' : ` --after ${cursor}`}`,
  );
  const ended = await readBatch(client, id);
  for (const line of describeEnd(ended)) note(line);
  process.exitCode = exitCodeFor(ended);
}

function addChangeCommands(batch: Command): void {
  const follow = (id: string): string => `To follow it: sluice batch watch ${id}`;
  const changes = [
    ['cancel', 'cancel a batch; results that it already has are kept', follow],
    ['pause', 'pause a batch: no new line starts', (id: string) => `To resume it: sluice batch resume ${id}`],
  ] as const;
  for (const [verb, description, next] of changes) {
    clientCommand(batch, `${verb} <id>`, description).action(async (id: string, options: ClientOptions) => {
      const client = await connect(options);
      printRows([await client.json<Batch>('POST', at(id, `/${verb}`))], batchColumns, options);
      note(next(id));
    });
  }

  clientCommand(batch, 'resume <id>', 'resume a paused batch')
    .option('--max-cost <dollars>', 'new maximum cost of the whole batch, or none', toMaximum)
    .option('--max-error-rate <share>', 'new maximum share of failed lines, or none', toMaximum)
    .action(async (id: string, options: ClientOptions & Parameters<typeof toBounds>[0]) => {
      const client = await connect(options);
      const json = toBounds(options);
      printRows([await client.json<Batch>('POST', at(id, '/resume'), { json })], batchColumns, options);
      note(follow(id));
    });

  clientCommand(batch, 'retry <id>', 'create a batch from the failed lines of a batch')
    .addOption(
      new Option('--lines <which>', 'failed: answered with an error; unfinished: never called; all_failed: both')
        .choices(['failed', 'unfinished', 'all_failed'])
        .default('failed'),
    )
    .action(async (id: string, options: ClientOptions & { lines: string }) => {
      const client = await connect(options);
      const made = await client.json<Batch>('POST', at(id, '/retry'), { json: { lines: options.lines } });
      printRows([made], batchColumns, options);
      note(follow(made.id));
    });

  clientCommand(
    batch,
    'verify <id>',
    'verify that each input line has exactly one result, and that results are unchanged',
  ).action(async (id: string, options: ClientOptions) => {
    const client = await connect(options);
    const check = await interruptible(
      async (signal) => await verifyBatch(client, await readBatch(client, id, signal), signal),
      () => 'Nothing was changed.',
    );
    printObject(check, options);
    if (!check.equal) process.exitCode = exitCodes.failed;
  });
}

function addLineCommands(batch: Command): void {
  clientCommand(batch, 'lines <id>', 'list the lines of a batch')
    .option('--outcome <outcome>', 'pending, completed or failed')
    .option('--code <code>', 'with this error code')
    .option('--status <status>', 'with this HTTP status', toCount({ min: 100, max: 599 }))
    .option('--model <model>', 'with this model')
    .option('--custom-id <id>', 'with this custom_id')
    .option('--search <text>', 'with this text in the request or response')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (id: string, options: ClientOptions & Record<string, string> & { limit: number }) => {
      const { outcome, code, status, model, customId, search, limit } = options;
      const query = { outcome, code, status_code: status, model, custom_id: customId, search };
      const client = await connect(options);
      printRows(await client.list<Line>(at(id, '/lines'), query, limit), lineColumns, options);
    });

  clientCommand(batch, 'line', 'show one line with its request and result')
    .argument('<id>')
    .argument('<number>', 'line number, from 1', toCount({ min: 1, max: 999_999_999 }))
    .action(async (id: string, number: number, options: ClientOptions) => {
      const found = await (await connect(options)).json<LineInFull>('GET', at(id, `/lines/${number}`));
      printObject(showsTable(options) ? inOrder(found) : found, options);
    });

  clientCommand(batch, 'failures <id>', 'count failed lines by cause').action(
    async (id: string, options: ClientOptions) => {
      type Group = { code: string | null; status_code: number | null; count: number; lines: number[]; message: string };
      const client = await connect(options);
      const { groups, other_lines: others } = await client.json<{ groups: Group[]; other_lines: number }>(
        'GET',
        at(id, '/failures'),
      );
      const shown: Column<Group>[] = [
        ['lines', ({ count }) => count],
        ['code', ({ code }) => code],
        ['status', ({ status_code: status }) => status],
        ['first', ({ lines }) => lines.join(' ')],
        ['message', ({ message }) => message],
      ];
      printRows(groups, shown, options);
      if (others > 0) note(`${formatCount(others, 'more line')} with other causes`);
    },
  );
}

const withTarget = (command: Command): Command =>
  command
    .option('--target <slug>', 'virtual key or provider for lines whose model does not name one')
    .option('--config <slug>', 'stored config to use')
    .option('--model <model>', 'model at the provider, if the provider needs one for the whole batch');

const withResults = (command: Command): Command =>
  command
    .option('-o, --output <file>', 'write the answers to this file instead of stdout; resumes an interrupted download')
    .option('--errors <file>', 'write the failed lines to this file');

/**
 * Runs `use` with an input file. `-` stands for standard input, which is written to a temporary file first: the lines are
 * checked before anything is sent, so they are read twice. Throws CliError for a terminal.
 */
async function withInputFile<Result>(file: string, use: (file: string) => Promise<Result>): Promise<Result> {
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
