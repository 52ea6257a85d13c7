import { randomUUID } from 'node:crypto';
import { exitCodes } from '../server/cli-error.ts';
import type { ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { showsTable, note, printObject, printRows } from '../terminal/output.ts';
import { costOf, countOf, dollarsOf, isOfSimulator } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { bodyOf, readInput, uploadInput, type BatchOptions } from './run-batch.ts';

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
type DryRun = {
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
  ['model', ({ model }) => model ?? '(of a prompt)'],
  ['lines', ({ lines }) => lines],
  ['input tokens', ({ input_tokens: tokens }) => tokens, { spare: 1 }],
  [
    'output at most',
    ({ output_tokens_max: tokens, unbounded_lines: open }) => (open > 0 ? 'no maximum' : tokens),
    { right: true, spare: 3 },
  ],
  [
    'cost of input',
    (row) => costOf(row.cost_of_input_usd, simulatedCost([row], 'cost_of_input_usd')),
    { right: true, spare: 2 },
  ],
  ['cost at most', (row) => costOf(row.cost_max_usd, simulatedCost([row], 'cost_max_usd')), { right: true }],
  ['goes to', ({ target, problem }) => problem?.message ?? target.join('; ')],
];

/**
 * Uploads an input file, says what a batch of it would do and cost, and deletes the file again. The exit code says whether all
 * lines would be called. Throws CliError, ApiError, UnreachableError.
 */
export async function dryRunBatch(file: string, options: ClientOptions & BatchOptions): Promise<void> {
  const client = await connect(options);
  const input = await readInput(file);
  const found = await interruptible(
    async (signal) => {
      const { id } = await uploadInput(client, input, randomUUID(), signal);
      try {
        const json = { ...bodyOf(input, options), input_file_id: id };
        return await client.json<DryRun>('POST', '/v1/batches/dry-run', { json, signal });
      } finally {
        await client.json('DELETE', `/v1/files/${id}`);
      }
    },
    () => 'Nothing was submitted.',
  );
  if (showsTable(options)) show(found, options);
  else printObject(found, options);
  const isRefused = found.models.some(({ problem }) => problem !== null);
  if (!found.valid || isRefused || found.limits.some(({ suffices }) => suffices === false)) {
    process.exitCode = exitCodes.failed;
  }
}

function show(found: DryRun, options: ClientOptions): void {
  const problems = found.errors?.data ?? [];
  if (found.models.length > 0) {
    printRows(found.models, columns, options);
    const { total } = found.request_counts;
    const read = found.is_whole
      ? countOf(total, 'line')
      : `The first ${countOf(total, 'line')}, because the file is large`;
    note(`${read}: ${describeCost(found)}.`);
  }
  for (const { label, measure, left, needed, suffices } of found.limits) {
    const state = suffices === null ? 'may not suffice' : suffices ? 'suffices' : 'does not suffice';
    const amount = (text: string): string => (measure === 'cost' ? dollarsOf(text) : `${text} tokens`);
    const most = needed === null ? '' : `, and at most ${amount(needed)} is needed`;
    note(`The budget ${label} ${state}: ${amount(left)} is left${most}.`);
  }
  if (!found.valid) note('The batch would be refused:');
  for (const { line, message } of problems) note(`  ${line === null ? '' : `line ${line}: `}${message}`);
}

const simulatedCost = (models: readonly Model[], member: 'cost_of_input_usd' | 'cost_max_usd'): number =>
  models.filter(({ model }) => isOfSimulator(model)).reduce((sum, row) => sum + Number(row[member]), 0);

function describeCost({ models, cost_of_input_usd: input, cost_max_usd: max }: DryRun): string {
  if (input === null) return 'the price of a model is not known';
  const most =
    max === null
      ? 'and no limit for the output, because lines have no maximum of tokens or no known price'
      : `at most ${costOf(max, simulatedCost(models, 'cost_max_usd'))}`;
  return `${costOf(input, simulatedCost(models, 'cost_of_input_usd'))} for the input, ${most}`;
}
