import { randomUUID } from 'node:crypto';
import { exitCodes } from '../server/cli-error.ts';
import type { ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { showsTable, note, printObject, printRows } from '../terminal/output.ts';
import { formatCost, formatCount, formatDollars, usesSimulator } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { toBodyObject, readInput, uploadInput, type BatchOptions } from './run-batch.ts';

type Model = {
  model: string | null;
  lines: number;
  input_tokens: number;
  output_tokens_max: number;
  unbounded_lines: number;
  target: string[];
  problem: { message: string } | null;
  cost_of_input_usd: string | null;
  cost_max_usd: string | null;
};
export type DryRun = {
  valid: boolean;
  is_whole: boolean;
  request_counts: { total: number };
  errors: { data: { line: number | null; message: string }[] } | null;
  models: Model[];
  cost_of_input_usd: string | null;
  cost_max_usd: string | null;
  limits: { label: string; measure: string; left: string; needed: string | null; suffices: boolean | null }[];
};

const columns: readonly Column<Model>[] = [
  ['model', ({ model }) => model ?? '(from a prompt)'],
  ['lines', ({ lines }) => lines],
  ['input tokens', ({ input_tokens: tokens }) => tokens, { spare: 1 }],
  [
    'max output',
    ({ output_tokens_max: tokens, unbounded_lines: open }) => (open > 0 ? 'unlimited' : tokens),
    { right: true, spare: 3 },
  ],
  [
    'input cost',
    (row) => formatCost(row.cost_of_input_usd, simulatedCost([row], 'cost_of_input_usd')),
    { right: true, spare: 2 },
  ],
  ['max cost', (row) => formatCost(row.cost_max_usd, simulatedCost([row], 'cost_max_usd')), { right: true }],
  ['goes to', ({ target, problem }) => problem?.message ?? target.join('; ')],
];

/**
 * Uploads an input file, shows the effect and cost of a batch with it, and deletes the file. The exit code is 0 if all lines
 * would be called. Throws CliError, ApiError, UnreachableError.
 */
export async function dryRunBatch(file: string, options: ClientOptions & BatchOptions): Promise<void> {
  const client = await connect(options);
  const input = await readInput(file);
  const found = await interruptible(
    async (signal) => {
      const { id } = await uploadInput(client, input, randomUUID(), signal);
      try {
        const json = { ...toBodyObject(input, options), input_file_id: id };
        return await client.json<DryRun>('POST', '/v1/batches/dry-run', { json, signal });
      } finally {
        await client.json('DELETE', `/v1/files/${id}`);
      }
    },
    () => 'Nothing was submitted.',
  );
  if (showsTable(options)) showDryRun(found, options);
  else printObject(found, options);
  if (!wouldRun(found)) process.exitCode = exitCodes.failed;
}

/** Whether all lines would be called. */
export const wouldRun = ({ valid, models, limits }: DryRun): boolean =>
  valid && models.every(({ problem }) => problem === null) && limits.every(({ suffices }) => suffices !== false);

/** Shows a dry run as a table and sentences. */
export function showDryRun(found: DryRun, options: ClientOptions): void {
  const problems = found.errors?.data ?? [];
  if (found.models.length > 0) {
    printRows(found.models, columns, options);
    const { total } = found.request_counts;
    const read = found.is_whole ? formatCount(total, 'line') : `First ${formatCount(total, 'line')} of a large file`;
    note(`${read}: ${describeCost(found)}.`);
  }
  for (const { label, measure, left, needed, suffices } of found.limits) {
    const state = suffices === null ? 'may not be enough' : suffices ? 'is enough' : 'is not enough';
    const amount = (text: string): string => (measure === 'cost' ? formatDollars(text) : `${text} tokens`);
    const most = needed === null ? '' : `, at most ${amount(needed)} needed`;
    note(`The budget ${label} ${state}: ${amount(left)} left${most}.`);
  }
  if (!found.valid) note('The batch would be rejected:');
  for (const { line, message } of problems) note(`  ${line === null ? '' : `line ${line}: `}${message}`);
}

const simulatedCost = (models: readonly Model[], member: 'cost_of_input_usd' | 'cost_max_usd'): number =>
  models.filter(({ model }) => usesSimulator(model)).reduce((sum, row) => sum + Number(row[member]), 0);

function describeCost({ models, cost_of_input_usd: input, cost_max_usd: max }: DryRun): string {
  if (input === null) return 'the price of a model is unknown';
  const most =
    max === null
      ? 'no maximum for the output, because lines have no token limit or no known price'
      : `at most ${formatCost(max, simulatedCost(models, 'cost_max_usd'))}`;
  return `${formatCost(input, simulatedCost(models, 'cost_of_input_usd'))} for the input, ${most}`;
}
