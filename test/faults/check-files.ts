import { createHash } from 'node:crypto';
import type { BatchEvent, BatchOutcome } from '#libs/batches/batch/batch.ts';
import type { OpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';

/** A line of the input: its 1-based number among the requests, by custom_id. */
export type InputLines = ReadonlyMap<string, number>;

type Usage = { prompt_tokens?: number; completion_tokens?: number };
type ResultLine = {
  id: string;
  custom_id: string;
  response: { status_code: number; request_id: string; body: { usage?: Usage; error?: object } } | null;
  error: { code: string; message: string } | null;
};

/** A result as it is in a file: `data` without its line end. */
export type FileLine = { line: number; data: Buffer; result: ResultLine };

export type ReadFiles = {
  violations: string[];
  total: number;
  /** Results in the output file, by line. */
  succeeded: Map<number, FileLine>;
  /** Results in the error file of lines that were executed or given up. */
  failed: Map<number, FileLine>;
  /** Lines that had no result when the batch ended: `batch_cancelled`, `batch_expired`. */
  unanswered: Map<number, FileLine>;
};

export function readInput(input: Buffer): InputLines {
  const lines = new Map<string, number>();
  for (const { text } of splitLines(input)) {
    if (text.trim() === '') continue;
    lines.set((JSON.parse(text) as { custom_id: string }).custom_id, lines.size + 1);
  }
  return lines;
}

function splitLines(bytes: Buffer): { data: Buffer; text: string }[] {
  const lines: { data: Buffer; text: string }[] = [];
  for (let start = 0; start < bytes.length;) {
    const found = bytes.indexOf(0x0a, start);
    const end = found < 0 ? bytes.length : found;
    const data = bytes.subarray(start, end);
    lines.push({ data, text: data.toString('utf8') });
    start = end + 1;
  }
  return lines;
}

/**
 * HOLD-1 and HOLD-2: every line of the input is in exactly one of the files, once, in the order of the input and with its
 * custom_id; the counts of the batch and of its terminal event are those of the files; every failure has a code.
 */
export function checkFiles(evidence: {
  batch: OpenAiBatch;
  events: readonly BatchEvent[];
  lines: InputLines;
  output: Buffer | null;
  errors: Buffer | null;
}): ReadFiles {
  const { batch, events, lines, output, errors } = evidence;
  const wasValidated = events.some((event) => event.type === 'batch.validated');
  const files: ReadFiles = {
    violations: [],
    total: wasValidated ? lines.size : 0,
    succeeded: new Map(),
    failed: new Map(),
    unanswered: new Map(),
  };
  const { violations, succeeded, failed, unanswered } = files;
  for (const [name, content] of [
    ['output', output],
    ['error', errors],
  ] as const) {
    let last = 0;
    for (const { data, text } of splitLines(content ?? Buffer.alloc(0))) {
      const result = JSON.parse(text) as ResultLine;
      const line = lines.get(result.custom_id);
      if (line === undefined) {
        violations.push(`the ${name} file has a custom_id that nobody sent: ${JSON.stringify(result.custom_id)}`);
        continue;
      }
      if (succeeded.has(line) || failed.has(line) || unanswered.has(line))
        violations.push(`line ${line} has two results`);
      if (line <= last) violations.push(`the ${name} file is not in the order of the input at line ${line}`);
      last = line;
      const problem = wrongPlace(name, result);
      if (problem) violations.push(`line ${line} in the ${name} file: ${problem}`);
      const kind = name === 'output' ? succeeded : isUnanswered(result) ? unanswered : failed;
      kind.set(line, { line, data, result });
    }
  }
  const found = succeeded.size + failed.size + unanswered.size;
  if (found !== files.total) {
    const missing = [...lines.values()].filter(
      (line) => !succeeded.has(line) && !failed.has(line) && !unanswered.has(line),
    );
    violations.push(
      `${files.total} lines were accepted, the files have ${found}; missing: ${missing.slice(0, 10).join(', ')}`,
    );
  }
  violations.push(...checkCounts(batch, events, files), ...checkHashes(events, output, errors));
  return files;
}

function wrongPlace(name: 'output' | 'error', { id, response, error }: ResultLine): string | null {
  if (!/^batch_req_[0-9a-f]{32}$/.test(id)) return `its id is ${id}`;
  if ((response === null) === (error === null)) return 'it has both or neither of response and error';
  const success = response !== null && response.status_code >= 200 && response.status_code < 300;
  if (success !== (name === 'output')) return `it has status ${response?.status_code} and error ${error?.code}`;
  if (error && !/^[a-z][a-z0-9_]*$/.test(error.code)) return `its error code is ${JSON.stringify(error.code)}`;
  return null;
}

const isUnanswered = ({ error }: ResultLine): boolean =>
  error?.code === 'batch_cancelled' || error?.code === 'batch_expired';

function checkCounts(batch: OpenAiBatch, events: readonly BatchEvent[], files: ReadFiles): string[] {
  const { total, succeeded, failed, unanswered } = files;
  const expected = { total, completed: succeeded.size, failed: failed.size };
  const violations: string[] = [];
  const compare = (what: string, counts: typeof expected): void => {
    for (const key of ['total', 'completed', 'failed'] as const)
      if (counts[key] !== expected[key])
        violations.push(`${what}: ${key} is ${counts[key]}, the files say ${expected[key]}`);
  };
  compare('request_counts', batch.request_counts);
  const outcome = classifyCallOutcome(events);
  if (outcome) {
    compare('the terminal event', outcome);
    if (outcome.output_file_id !== batch.output_file_id || outcome.error_file_id !== batch.error_file_id)
      violations.push('the terminal event and the batch name different files');
  }
  if ((batch.output_file_id === null) !== (succeeded.size === 0))
    violations.push(`output file ${batch.output_file_id} with ${succeeded.size} lines`);
  if ((batch.error_file_id === null) !== (failed.size + unanswered.size === 0))
    violations.push(`error file ${batch.error_file_id} with ${failed.size + unanswered.size} lines`);
  if (unanswered.size > 0 && batch.status !== 'cancelled' && batch.status !== 'expired')
    violations.push(`${unanswered.size} lines were overtaken by the end of a batch that is ${batch.status}`);
  for (const { line, result } of unanswered.values())
    if (result.error?.code !== `batch_${batch.status}`)
      violations.push(`line ${line} is ${result.error?.code} in a batch that is ${batch.status}`);
  return violations;
}

/** What the terminal event says. Null for a batch that failed its validation. */
function classifyCallOutcome(events: readonly BatchEvent[]): BatchOutcome | null {
  const last = events.at(-1);
  const isOutcome =
    last?.type === 'batch.completed' || last?.type === 'batch.cancelled' || last?.type === 'batch.expired';
  return isOutcome ? last.data : null;
}

function checkHashes(events: readonly BatchEvent[], output: Buffer | null, errors: Buffer | null): string[] {
  const outcome = classifyCallOutcome(events);
  if (!outcome) return [];
  const { output_sha256, error_sha256 } = outcome;
  const hash = (content: Buffer | null): string | null => content && createHash('sha256').update(content).digest('hex');
  return [
    ...(hash(output) === output_sha256 ? [] : ['the output file is not the one that the log names']),
    ...(hash(errors) === error_sha256 ? [] : ['the error file is not the one that the log names']),
  ];
}
