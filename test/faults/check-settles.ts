import { hash } from 'node:crypto';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { resultsRoot } from '#libs/batches/results/results-root.ts';
import { rangesOfBits } from '#libs/batches/chunks/settled-lines.ts';
import type { OpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';
import type { FileLine, ReadFiles } from './check-files.ts';

type Settled = Extract<BatchEvent, { type: 'batch.lines_settled' }>['data'];

/**
 * The log against the files: every executed line is settled by exactly one event, whose counts, usage and root are
 * those of the lines it names (HOLD-6).
 */
export function checkSettles(events: readonly BatchEvent[], batch: OpenAiBatch, files: ReadFiles): string[] {
  const violations: string[] = [];
  const settled = new Map<number, number>();
  const usage = { input: 0, output: 0 };
  const logged = { input: 0, output: 0 };
  for (const [index, event] of events.entries()) {
    if (event.type !== 'batch.lines_settled') continue;
    const version = index + 1;
    const lines: FileLine[] = [];
    for (const line of linesOf(event.data)) {
      const earlier = settled.get(line);
      if (earlier !== undefined) violations.push(`line ${line} is settled by events ${earlier} and ${version}`);
      settled.set(line, version);
      const found = files.succeeded.get(line) ?? files.failed.get(line);
      if (found) lines.push(found);
      else violations.push(`line ${line} is settled by event ${version} and has no result in the files`);
    }
    violations.push(...checkOne(event.data, version, lines, files));
    for (const part of event.data.usage) {
      logged.input += part.input_tokens;
      logged.output += part.output_tokens;
    }
  }
  for (const results of [files.succeeded, files.failed]) {
    for (const { line, result } of results.values()) {
      if (!settled.has(line)) violations.push(`line ${line} has a result that no event settled`);
      usage.input += result.response?.body.usage?.prompt_tokens ?? 0;
      usage.output += result.response?.body.usage?.completion_tokens ?? 0;
    }
  }
  const shown = { input: batch.usage.input_tokens, output: batch.usage.output_tokens };
  for (const [what, sums] of [
    ['the log', logged],
    ['the batch', shown],
  ] as const) {
    if (sums.input !== usage.input || sums.output !== usage.output)
      violations.push(`usage of ${what} is ${sums.input}/${sums.output}, the files say ${usage.input}/${usage.output}`);
  }
  return violations;
}

export function linesOf({ chunks }: Settled): number[] {
  const lines = chunks
    .flatMap(rangesOfBits)
    .flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_value, index) => first + index));
  return lines.toSorted((a, b) => a - b);
}

function checkOne(data: Settled, version: number, lines: readonly FileLine[], files: ReadFiles): string[] {
  const violations: string[] = [];
  const completed = lines.filter(({ line }) => files.succeeded.has(line)).length;
  if (data.completed !== completed || data.failed !== lines.length - completed)
    violations.push(
      `event ${version} counts ${data.completed}+${data.failed}, its lines are ${completed}+${lines.length - completed}`,
    );
  if (lines.length === 0) violations.push(`event ${version} settles no line`);
  const root = resultsRoot(
    lines
      .map(({ line, data }) => ({ line, sha256: hash('sha256', data, 'buffer') }))
      .toSorted((a, b) => a.line - b.line),
  );
  if (root !== data.results_root) violations.push(`event ${version}: the root of its lines is another`);
  return violations;
}
