import { CliError, exitCodes } from './cli-error.ts';
import { download, type Downloaded } from './download.ts';
import type { Client } from './http-client.ts';
import { interruptible } from './interruptible.ts';
import { bytesOf, dollarsOf, note, printable } from './output.ts';
import { barOf, createProgressLine } from './progress-line.ts';
import { checkTargets } from './result-targets.ts';
import { hasEnded, type Batch } from './watch-batch.ts';

export type ResultOptions = { output?: string; errors?: string };

type Failures = {
  groups: { code: string | null; status_code: number | null; count: number; message: string | null }[];
};

/**
 * Delivers the results of a batch that has ended: the answers to stdout or `output`, the failed lines to `errors` or, as a
 * summary, to stderr. Sets the exit code. Throws CliError if a file is not whole.
 */
export async function deliverResults(client: Client, batch: Batch, options: ResultOptions): Promise<void> {
  if (!hasEnded(batch)) {
    throw new CliError(`The batch is ${batch.status}: it has no results yet.`, {
      hint: `sluice batch watch ${batch.id}`,
    });
  }
  const { completed, failed, total } = batch.request_counts;
  await checkTargets([options.output, options.errors]);
  await interruptible(
    async (signal) => {
      if (batch.output_file_id !== null)
        checkCount(await fetchFile(client, batch.output_file_id, options.output ?? null, signal), completed, 'output');
      if (batch.error_file_id === null || options.errors === undefined) return;
      const errors = await fetchFile(client, batch.error_file_id, options.errors, signal);
      // The error file of a batch that was stopped also has the lines that were never called, which `failed` does not count.
      if (batch.status === 'completed') checkCount(errors, failed, 'error');
    },
    () =>
      `What came is kept. To go on: sluice batch results ${batch.id}${options.output ? ` -o ${options.output}` : ''}`,
  );
  const cost = batch.cost === null ? '' : `, ${dollarsOf(batch.cost)}`;
  const unpriced = batch.unpriced_lines === 0 ? '' : ` and ${batch.unpriced_lines} lines without a known price`;
  note(`${batch.id}: ${batch.status}, ${completed} of ${total} lines answered, ${failed} failed${cost}${unpriced}`);
  for (const { line, message } of (batch.errors?.data ?? []).slice(0, 20))
    note(`  ${line === null ? '' : `line ${line}: `}${message}`);
  if (failed > 0 && options.errors === undefined) await summariseFailures(client, batch);
  if (batch.status !== 'completed') process.exitCode = exitCodes.notCompleted;
  else if (failed > 0) process.exitCode = exitCodes.failedLines;
}

async function fetchFile(client: Client, id: string, target: string | null, signal: AbortSignal): Promise<Downloaded> {
  const line = createProgressLine();
  // Text on a terminal would be torn apart by a line of progress.
  const isQuiet = target === null && process.stdout.isTTY;
  const onProgress = (bytes: number, of: number): void =>
    line.show(`downloading ${barOf(bytes, of)} ${bytesOf(bytes)} of ${bytesOf(of)}`);
  try {
    return await download(client, id, target, { signal, ...(isQuiet ? {} : { onProgress }) });
  } finally {
    if (!isQuiet) line.clear();
  }
}

function checkCount({ lines }: Downloaded, wanted: number, which: string): void {
  if (lines === wanted) return;
  throw new CliError(`The ${which} file has ${lines} lines, but the batch says ${wanted}.`, {
    hint: 'sluice batch verify looks closer.',
  });
}

/** What made lines fail, by cause. A server that cannot say it costs nothing but the summary. */
async function summariseFailures(client: Client, { id }: Batch): Promise<void> {
  try {
    const { groups } = await client.json<Failures>('GET', `/v1/batches/${id}/failures`);
    for (const { count, code, status_code: status, message } of groups.slice(0, 5)) {
      const text = printable(message ?? '').slice(0, 160);
      note(`  ${count} failed with ${code ?? `status ${status}`}${text === '' ? '' : `: ${text}`}`);
    }
  } catch (error) {
    if (!(error instanceof CliError)) throw error;
  }
  note(`  sluice batch results ${id} --errors FILE has them all; sluice batch retry ${id} repeats them.`);
}
