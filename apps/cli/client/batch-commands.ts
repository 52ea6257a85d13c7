import { InvalidArgumentError, Option, type Command } from 'commander';
import { deliverResults, type ResultOptions } from './batch-results.ts';
import { dryRunBatch } from './dry-run-batch.ts';

import { exitCodes } from './cli-error.ts';
import { clientCommand, groupOf, toCount, toPairs, type ClientOptions } from './client-command.ts';
import { connect } from './connection.ts';
import { interruptible } from './interruptible.ts';
import { dollarsOf, note, printObject, printRows, timeOf, type Column } from './output.ts';
import { runBatch, type BatchOptions, type RunOptions } from './run-batch.ts';
import { verifyBatch } from './verify-batch.ts';
import { readBatch, watchBatch, type Batch } from './watch-batch.ts';

const columns: readonly Column<Batch>[] = [
  ['id', ({ id }) => id],
  ['status', ({ status, paused_at: paused }) => (paused ? 'paused' : status)],
  ['lines', ({ request_counts: { completed, failed, total } }) => `${completed + failed}/${total}`],
  ['failed', ({ request_counts: { failed } }) => failed],
  ['cost', ({ cost }) => dollarsOf(cost)],
  ['created', ({ created_at: at }) => timeOf(at)],
  ['endpoint', ({ endpoint }) => endpoint],
];

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
  ['model', ({ model }) => model],
  ['error', ({ error }) => error?.message ?? error?.code],
];

const at = (id: string, rest = ''): string => `/v1/batches/${encodeURIComponent(id)}${rest}`;

/** Adds `sluice batch …`. */
export function addBatchCommands(program: Command): void {
  const batch = groupOf(program, 'batch', 'run batches and look after them');

  withResults(
    withTarget(clientCommand(batch, 'run <file>', 'check, upload, submit and watch a batch, then deliver its results')),
  )
    .addOption(new Option('--window <window>', 'how long it may take').choices(['immediate', '24h']).default('24h'))
    .option('--metadata <name=value>', 'of the batch; can be repeated', toPairs)
    .addOption(new Option('--on-budget <what>', 'what lines do when a budget is used up').choices(['wait', 'fail']))
    .option('--again', 'make a new batch, even if the same file and options made one before')
    .option('--detach', 'do not wait for its end')
    .addHelpText(
      'after',
      '\nRun it again after an interruption: the same file and options go on with the same batch. Ctrl-C does not cancel.',
    )
    .action(async (file: string, options: RunOptions) => {
      await runBatch(file, options);
    });

  withTarget(
    clientCommand(batch, 'dry-run <file>', 'say what a batch of a file would do and cost, without creating it'),
  )
    .option('--metadata <name=value>', 'of the batch; can be repeated', toPairs)
    .action(async (file: string, options: ClientOptions & BatchOptions) => {
      await dryRunBatch(file, { ...options, window: '24h' });
    });

  clientCommand(batch, 'list', 'list batches, newest first')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (options: ClientOptions & { limit: number }) => {
      const client = await connect(options);
      printRows(await client.list<Batch>('/v1/batches', {}, options.limit), columns, options);
    });

  clientCommand(batch, 'get <id>', 'show a batch').action(async (id: string, options: ClientOptions) => {
    printObject(await readBatch(await connect(options), id), options);
  });

  clientCommand(batch, 'watch <id>', 'show its progress until it has ended; Ctrl-C does not cancel it').action(
    async (id: string, options: ClientOptions) => {
      const client = await connect(options);
      const ended = await interruptible(
        (signal) => watchBatch(client, id, signal),
        () => `The batch goes on. To come back: sluice batch watch ${id}`,
      );
      printRows([ended], columns, options);
      if (ended.status !== 'completed') process.exitCode = exitCodes.notCompleted;
      else if (ended.request_counts.failed > 0) process.exitCode = exitCodes.failedLines;
    },
  );

  withResults(clientCommand(batch, 'results <id>', 'download the results of a batch that has ended')).action(
    async (id: string, options: ClientOptions & ResultOptions) => {
      const client = await connect(options);
      await deliverResults(client, await readBatch(client, id), options);
    },
  );

  const changes = {
    cancel: 'end a batch; what was answered stays',
    pause: 'start no new line of it',
    resume: 'go on with it',
  };
  for (const [verb, description] of Object.entries(changes)) {
    clientCommand(batch, `${verb} <id>`, description).action(async (id: string, options: ClientOptions) => {
      const client = await connect(options);
      printRows([await client.json<Batch>('POST', at(id, `/${verb}`))], columns, options);
    });
  }

  clientCommand(batch, 'retry <id>', 'make a new batch of the lines that failed')
    .addOption(
      new Option('--lines <which>', 'answered with an error, never called, or both')
        .choices(['failed', 'unfinished', 'all_failed'])
        .default('failed'),
    )
    .action(async (id: string, options: ClientOptions & { lines: string }) => {
      const client = await connect(options);
      const made = await client.json<Batch>('POST', at(id, '/retry'), { json: { lines: options.lines } });
      printRows([made], columns, options);
      note(`To follow it: sluice batch watch ${made.id}`);
    });

  clientCommand(batch, 'verify <id>', 'check that each line of the input has exactly one result').action(
    async (id: string, options: ClientOptions) => {
      const client = await connect(options);
      const check = await interruptible(
        async (signal) => await verifyBatch(client, await readBatch(client, id, signal), signal),
        () => 'Nothing was changed.',
      );
      printObject(check, options);
      if (!check.equal) process.exitCode = exitCodes.failed;
    },
  );

  clientCommand(batch, 'lines <id>', 'list the lines of a batch')
    .option('--outcome <outcome>', 'pending, completed or failed')
    .option('--code <code>', 'with this error code')
    .option('--status <status>', 'with this HTTP status', toCount({ min: 100, max: 599 }))
    .option('--model <model>')
    .option('--custom-id <id>')
    .option('--search <text>', 'with this text in the request or the answer')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (id: string, options: ClientOptions & Record<string, string> & { limit: number }) => {
      const { outcome, code, status, model, customId, search, limit } = options;
      const query = { outcome, code, status_code: status, model, custom_id: customId, search };
      const client = await connect(options);
      printRows(await client.list<Line>(at(id, '/lines'), query, limit), lineColumns, options);
    });

  clientCommand(batch, 'line <id> <number>', 'show one line with its request and its result').action(
    async (id: string, number: string, options: ClientOptions) => {
      if (!/^\d+$/.test(number)) throw new InvalidArgumentError('A line has a number, from 1.');
      printObject(await (await connect(options)).json<object>('GET', at(id, `/lines/${number}`)), options);
    },
  );

  clientCommand(batch, 'failures <id>', 'count the failed lines by what made them fail').action(
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
      if (others > 0) note(`and ${others} lines with other causes`);
    },
  );
}

const withTarget = (command: Command): Command =>
  command
    .option('--target <slug>', 'the virtual key or provider of lines whose model does not name one')
    .option('--config <slug>', 'a stored config')
    .option('--model <model>', 'the model at the provider, where it takes one for the whole batch');

const withResults = (command: Command): Command =>
  command
    .option('-o, --output <file>', 'write the answers to this file instead of stdout; a broken download goes on')
    .option('--errors <file>', 'write the failed lines to this file');
