import { CliError } from '../server/cli-error.ts';
import { describeEnd, exitCodeFor } from './describe-batch.ts';
import { download, type Downloaded } from './download.ts';
import type { Client } from '../server/http-client.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { note } from '../terminal/output.ts';
import { formatBytes, formatCount } from '../terminal/quantities.ts';
import { cut, printable } from '../terminal/table.ts';
import { barOf, createProgressLine } from '../terminal/progress-line.ts';
import { checkTargets } from './result-targets.ts';
import { hasEnded, type Batch } from './watch-batch.ts';

const causesShown = 5;
const messageWidth = 160;

export type ResultOptions = { output?: string; errors?: string };

type Failures = {
  groups: { code: string | null; status_code: number | null; count: number; message: string | null }[];
};

/**
 * Delivers the results of a batch that has ended: the answers to stdout or `output`, the failed lines to `errors` or, as a
 * summary, to stderr. Sets the exit code. Throws CliError if a file is incomplete.
 */
export async function deliverResults(client: Client, batch: Batch, options: ResultOptions): Promise<void> {
  if (!hasEnded(batch)) {
    throw new CliError(`The batch is ${batch.status} and has no result files yet.`, {
      hint: `To wait for it: sluice batch watch ${batch.id}. To get results as they arrive: sluice batch results ${batch.id} --follow`,
    });
  }
  const { completed, failed } = batch.request_counts;
  const written: string[] = [];
  const say = (target: string | undefined, { lines, bytes }: Downloaded): void => {
    if (target !== undefined)
      written.push(`  ${target}: ${formatCount(lines, 'line')}, ${formatBytes(bytes)}, SHA-256 checked`);
  };
  await checkTargets([options.output, options.errors]);
  await interruptible(
    async (signal) => {
      if (batch.output_file_id !== null) {
        const output = await fetchFile(client, batch.output_file_id, options.output ?? null, signal);
        checkCount(output, completed, 'output');
        say(options.output, output);
      }
      if (batch.error_file_id === null || options.errors === undefined) return;
      const errors = await fetchFile(client, batch.error_file_id, options.errors, signal);
      say(options.errors, errors);
      // The error file of a batch that was stopped also has the lines that were never called, which `failed` does not count.
      if (batch.status === 'completed') checkCount(errors, failed, 'error');
    },
    () =>
      `The downloaded part is kept. To resume: sluice batch results ${batch.id}${options.output ? ` -o ${options.output}` : ''}`,
  );
  for (const line of [...describeEnd(batch), ...written]) note(line);
  if (options.errors === undefined) {
    await explainFailures(client, batch);
    noteFailureCommands(batch);
  }
  process.exitCode = exitCodeFor(batch);
}

async function fetchFile(client: Client, id: string, target: string | null, signal: AbortSignal): Promise<Downloaded> {
  const line = createProgressLine();
  // A progress line would break up the text on a terminal.
  const isQuiet = target === null && process.stdout.isTTY;
  const onProgress = (bytes: number, of: number): void =>
    line.show(`downloading ${barOf(bytes, of)}${formatBytes(bytes)} of ${formatBytes(of)}`);
  try {
    return await download(client, id, target, { signal, ...(isQuiet ? {} : { onProgress }) });
  } finally {
    if (!isQuiet) line.clear();
  }
}

function checkCount({ lines }: Downloaded, wanted: number, which: string): void {
  if (lines === wanted) return;
  throw new CliError(`The ${which} file has ${lines} lines, but the batch reports ${wanted}.`, {
    hint: 'To find the difference: sluice batch verify',
  });
}

/** Prints how to get and retry the failed lines, if there are any. */
export function noteFailureCommands({ id, request_counts: { failed } }: Batch): void {
  if (failed === 0) return;
  note(`To get the failed lines: sluice batch results ${id} --errors FILE`);
  note(`To retry them: sluice batch retry ${id}`);
}

/** Prints why lines failed, by cause. If the server cannot report the causes, the command continues without them. */
export async function explainFailures(client: Client, { id, request_counts: { failed } }: Batch): Promise<void> {
  if (failed === 0) return;
  try {
    const { groups } = await client.json<Failures>('GET', `/v1/batches/${id}/failures`);
    for (const { count, code, status_code: status, message } of groups.slice(0, causesShown)) {
      const text = cut(printable(message ?? ''), messageWidth);
      note(`  ${count} failed with ${code ?? `status ${status}`}${text === '' ? '' : `: ${text}`}`);
    }
    if (groups.length > causesShown) note(`  ${groups.length - causesShown} more causes: sluice batch failures ${id}`);
  } catch (error) {
    if (!(error instanceof CliError)) throw error;
  }
}
