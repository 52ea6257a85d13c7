import { batchLineId } from '#libs/kernel/ids.ts';
import { createHash } from 'node:crypto';
import type { BatchEvent } from '../batch/batch.ts';
import { rangesOfBits } from '../chunks/settled-lines.ts';
import { resultsRoot } from '../results/results-root.ts';

type Settled = Extract<BatchEvent, { type: 'batch.lines_settled' }>['data'];

export type ResultsCheck = {
  batchId: string;
  /** The number of lines in both files, and of events whose roots were computed again. */
  lines: number;
  settles: number;
  /** The differences to the log; at most `violationsMax` entries. */
  violations: string[];
};

export const violationsMax = 20;

/** An event that settled lines: its version in the stream of the batch, and its data. */
export type SettledEvent = { version: number; data: Pick<Settled, 'chunks' | 'completed' | 'failed' | 'results_root'> };

type Evidence = {
  batch: { id: string; total: number; output_file_id: string | null; error_file_id: string | null };
  /** All events of the batch. */
  events: Iterable<SettledEvent> | AsyncIterable<SettledEvent>;
  readFile: (fileId: string) => Promise<AsyncIterable<Buffer>>;
};

/**
 * Compares the output and error file of a batch that has ended with its events. For every event that settled lines, its
 * lines must be in the files, its counts must be right, and its `results_root` must be the root of their bytes. Reads
 * the files in pieces, and keeps in memory the ranges of all events and one hash per line of the events whose lines
 * have not all been read.
 */
export async function compareResults({ batch, events, readFile }: Evidence): Promise<ResultsCheck> {
  const check: ResultsCheck = { batchId: batch.id, lines: 0, settles: 0, violations: [] };
  const complain = (text: string): void => {
    if (check.violations.length < violationsMax) check.violations.push(text);
  };
  const ranges = await readRanges(events);
  for (const [index, range] of ranges.entries()) {
    const before = ranges[index - 1];
    if (before && range.first <= before.last)
      complain(`line ${range.first} is settled by events ${before.settle.version} and ${range.settle.version}`);
  }
  const open = async (fileId: string | null): Promise<Lines> =>
    await openLines(fileId === null ? undefined : hashLines(await readFile(fileId)));
  const files = { output: await open(batch.output_file_id), error: await open(batch.error_file_id) };
  let at = 0;
  for (let line = 1; line <= batch.total; line += 1) {
    const id = batchLineId(batch.id, line);
    const isOutput = files.output.next?.id === id;
    const file = isOutput ? files.output : files.error;
    const found = file.next?.id === id ? file.next : undefined;
    if (found) await file.advance();
    else complain(`line ${line} is missing from both files, or out of order`);
    check.lines += found ? 1 : 0;
    while ((ranges[at]?.last ?? line) < line) at += 1;
    const range = ranges[at];
    if (!range || line < range.first) continue;
    const { settle } = range;
    if (found) settle.lines.push({ line, sha256: found.sha256 });
    if (found && isOutput) settle.completed += 1;
    settle.left -= 1;
    if (settle.left > 0) continue;
    check.settles += 1;
    judge(settle, complain);
  }
  for (const { version } of new Set(ranges.map(({ settle }) => settle).filter(({ left }) => left > 0)))
    complain(`event ${version} settles lines that the batch does not have, or that another event settled`);
  for (const [name, { next }] of Object.entries(files))
    if (next) complain(`the ${name} file has lines of another batch, or lines out of order`);
  return check;
}

type Settle = {
  version: number;
  /** Its first line. */
  first: number;
  data: Pick<Settled, 'completed' | 'failed' | 'results_root'>;
  /** How many of its lines have not been read yet, and the data of those that have. */
  left: number;
  completed: number;
  lines: { line: number; sha256: Buffer }[];
};
type Range = { first: number; last: number; settle: Settle };

/** Frees the hashes of an event that has been checked. */
function judge(settle: Settle, complain: (text: string) => void): void {
  const { version, data } = settle;
  const lines = settle.lines.splice(0);
  const failed = lines.length - settle.completed;
  if (settle.completed !== data.completed || failed !== data.failed) {
    complain(
      `event ${version} counts ${data.completed} completed and ${data.failed} failed lines; the files have ` +
        `${settle.completed} and ${failed}`,
    );
  }
  if (resultsRoot(lines) !== data.results_root)
    complain(`event ${version}: results_root does not match its lines, of which ${settle.first} is the first`);
}

/** The line ranges that each event settled, in the order of the lines. */
async function readRanges(events: Evidence['events']): Promise<Range[]> {
  const ranges: Range[] = [];
  for await (const { version, data } of events) {
    const settle: Settle = { version, first: Infinity, data, left: 0, completed: 0, lines: [] };
    for (const [first, last] of data.chunks.flatMap(rangesOfBits)) {
      settle.left += last - first + 1;
      settle.first = Math.min(settle.first, first);
      ranges.push({ first, last, settle });
    }
  }
  return ranges.toSorted((a, b) => a.first - b.first);
}

/** `offset`: where the line begins in the file. */
type HashedLine = { id: string; sha256: Buffer; offset: number; bytes: number };
type Lines = { next: HashedLine | undefined; advance(): Promise<void> };

/** The lines of a file, one after the other; none if the batch has no such file. */
async function openLines(hashed: AsyncGenerator<HashedLine> | undefined): Promise<Lines> {
  const lines: Lines = {
    next: undefined,
    async advance() {
      const result = await hashed?.next();
      lines.next = result?.done === false ? result.value : undefined;
    },
  };
  await lines.advance();
  return lines;
}

/** Every result line begins like this (result-line.ts). */
const idShape = /^\{"id":"([^"]{1,100})"/;
const headBytes = 120;

/** Hashes each line while its bytes arrive, so that memory does not depend on the size of a line. */
export async function* hashLines(content: AsyncIterable<Buffer>): AsyncGenerator<HashedLine> {
  let head = '';
  let hash = createHash('sha256');
  let [offset, bytes] = [0, 0];
  for await (const piece of content) {
    let from = 0;
    for (let end = piece.indexOf(0x0a); end !== -1; end = piece.indexOf(0x0a, from)) {
      add(piece.subarray(from, end));
      yield { id: idShape.exec(head)?.[1] ?? '', sha256: hash.digest(), offset, bytes };
      head = '';
      hash = createHash('sha256');
      [offset, bytes] = [offset + bytes + 1, 0];
      from = end + 1;
    }
    add(piece.subarray(from));
  }
  function add(part: Buffer): void {
    hash.update(part);
    bytes += part.length;
    if (head.length < headBytes) head += part.toString('latin1', 0, headBytes - head.length);
  }
}
