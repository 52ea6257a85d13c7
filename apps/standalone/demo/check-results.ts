import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';
import { z } from 'zod';
import type { BatchObject } from '#libs/contracts/batches/batches.ts';
import { count } from './progress.ts';

/** One check and its result as text. */
export type Finding = { ok: boolean; text: string };

const Usage = z.object({
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  prompt_tokens_details: z.object({ cached_tokens: z.int().optional() }).optional(),
  completion_tokens_details: z.object({ reasoning_tokens: z.int().optional() }).optional(),
});
const Result = z.object({
  custom_id: z.string(),
  response: z.object({ status_code: z.int(), body: z.object({ usage: Usage.optional() }) }).nullable(),
});

type Tokens = { input: number; cached: number; output: number; reasoning: number };
type Tally = { lines: number; notExpected: string[]; twice: string[]; tokens: Tokens };

type Options = {
  batch: BatchObject;
  /** The file that each custom_id must be in. */
  expected: ReadonlyMap<string, 'output' | 'errors'>;
  /** undefined if the batch has no such file. */
  outputFile: string | undefined;
  errorFile: string | undefined;
};

/**
 * Checks the two files against the input and the batch object: each line is in exactly one file, and in the right one; the
 * batch's counts match the files; its usage is the sum over the output file. Reads the files line by line.
 */
export async function checkResults({ batch, expected, outputFile, errorFile }: Options): Promise<Finding[]> {
  const seen = new Set<string>();
  const output = await tally(outputFile, 'output', expected, seen);
  const errors = await tally(errorFile, 'errors', expected, seen);
  const missing = [...expected.keys()].filter((id) => !seen.has(id));
  const twice = [...output.twice, ...errors.twice];
  const misplaced = [...output.notExpected, ...errors.notExpected];
  const { total, completed, failed } = batch.request_counts;
  const { usage } = batch;
  const { tokens } = output;
  return [
    finding(
      missing.length + twice.length === 0,
      `${count(expected.size)} input lines: ${count(output.lines)} in the output file, ${count(errors.lines)} in the error ` +
        `file, ${count(missing.length)} missing, ${count(twice.length)} duplicated`,
      [...missing, ...twice],
    ),
    finding(
      misplaced.length === 0,
      `exactly the ${count(errors.lines)} lines that were expected to fail did fail`,
      misplaced,
    ),
    finding(
      total === expected.size && completed === output.lines && failed === errors.lines,
      `the batch's counts match: ${count(total)} = ${count(completed)} completed + ${count(failed)} failed`,
    ),
    finding(
      usage !== null &&
        usage.input_tokens === tokens.input &&
        usage.input_tokens_details.cached_tokens === tokens.cached &&
        usage.output_tokens === tokens.output &&
        usage.output_tokens_details.reasoning_tokens === tokens.reasoning &&
        usage.total_tokens === tokens.input + tokens.output,
      `the batch's usage is ${count(usage?.input_tokens ?? 0)} input + ${count(usage?.output_tokens ?? 0)} output tokens; ` +
        `the output file adds up to ${count(tokens.input)} + ${count(tokens.output)}`,
    ),
  ];
}

async function tally(
  file: string | undefined,
  name: 'output' | 'errors',
  expected: ReadonlyMap<string, 'output' | 'errors'>,
  seen: Set<string>,
): Promise<Tally> {
  const found: Tally = {
    lines: 0,
    notExpected: [],
    twice: [],
    tokens: { input: 0, cached: 0, output: 0, reasoning: 0 },
  };
  if (file === undefined) return found;
  for await (const line of createInterface({ input: createReadStream(file), crlfDelay: Infinity })) {
    const { custom_id: id, response } = Result.parse(JSON.parse(line));
    found.lines += 1;
    if (seen.has(id)) found.twice.push(id);
    seen.add(id);
    const isSuccess = response !== null && response.status_code >= 200 && response.status_code < 300;
    if (expected.get(id) !== name || isSuccess !== (name === 'output')) found.notExpected.push(id);
    const usage = response?.body.usage;
    if (usage === undefined) continue;
    found.tokens.input += usage.prompt_tokens;
    found.tokens.cached += usage.prompt_tokens_details?.cached_tokens ?? 0;
    found.tokens.output += usage.completion_tokens;
    found.tokens.reasoning += usage.completion_tokens_details?.reasoning_tokens ?? 0;
  }
  return found;
}

function finding(ok: boolean, text: string, examples: readonly string[] = []): Finding {
  const shown = examples.slice(0, 5).join(', ');
  return { ok, text: ok || shown === '' ? text : `${text}, for example ${shown}` };
}

const SimulatorStats = z.object({ statuses: z.record(z.string(), z.record(z.string(), z.int())) });

/**
 * Checks the calls that the provider received: one successful call per completed line, one rejected call per failed
 * line, and in addition only calls that failed and were retried. No line was called again after it had a result.
 */
export function checkCalls(stats: unknown, batch: BatchObject): Finding {
  const { statuses } = SimulatorStats.parse(stats);
  const chat = Object.entries(statuses).find(([route]) => route.includes('chat/completions'))?.[1] ?? {};
  const calls = Object.values(chat).reduce((sum, calls) => sum + calls, 0);
  const { total, completed, failed } = batch.request_counts;
  const retried = chat['500'] ?? 0;
  return finding(
    chat['200'] === completed && (chat['400'] ?? 0) === failed && calls === total + retried,
    `the provider saw ${count(calls)} calls: one per line and ${count(retried)} retries of calls that failed`,
  );
}
