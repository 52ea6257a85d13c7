import { GatewayError } from '#libs/kernel/errors.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { isTerminal } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { isSuccess, unansweredLine } from '../results/result-line.ts';
import { scanRequests, type LineDeps } from '../results/scan-requests.ts';
import { inPages, listResults, listSettled, pieceBytesMax, readParts, readResults } from '../results/stored-results.ts';
import type { SettledAt, StoredResult } from '../results/stored-results.ts';

export type StreamDeps = LineDeps & {
  /** Reads the batch again. */
  reload: () => Promise<BatchRow>;
  /** Runs one read of results or requests. */
  read: <Found>(work: () => Promise<Found>) => Promise<Found>;
  /** Waits for memory, and returns how to free it. */
  reserve: (bytes: number) => Promise<() => void>;
};

export type StreamQuery = {
  /** The position after which it continues. */
  after: SettledAt;
  /** Only lines of the output file or of the error file; null: both. */
  status: 'completed' | 'failed' | null;
  /** How long to wait for the next result of a running batch. */
  waitMs: number;
};

const pollMs = 500;
/** A stream that follows a batch ends after this time, and the client continues with its last cursor. */
const followMsMax = 600_000;
const windowLines = 4_096;

/**
 * Yields the result lines of a batch as NDJSON, in the order in which they were settled. Each is the line of the output
 * or error file with one more member, `cursor`. Lines that were never answered follow, by number, when the batch takes
 * no more results. The last object, `batch.results_end`, shows that the batch has ended and all lines were sent; without
 * it, continue after the last cursor.
 */
export async function* streamResults(
  deps: StreamDeps,
  batch: BatchRow,
  { after, status, waitMs }: StreamQuery,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  const endMs = performance.now() + followMsMax;
  const isWanted = (succeeded: boolean): boolean => status === null || (status === 'completed') === succeeded;
  let at = after;
  let current = batch;
  /** Returns whether the batch has changed within the time that the client waits. */
  const hasChanged = async (): Promise<boolean> => {
    for (let leftMs = Math.min(waitMs, endMs - performance.now()); leftMs > 0; leftMs -= pollMs) {
      await sleep(Math.min(pollMs, leftMs), signal);
      signal.throwIfAborted();
      const { version } = current;
      current = await deps.reload();
      if (current.version !== version) return true;
    }
    return false;
  };
  while (at.version !== Infinity) {
    const results = await deps.read(() => listSettled(deps.db, batch, at));
    yield* linesOf(
      deps,
      batch,
      results.filter((result) => isWanted(isSuccess(result.status))),
    );
    at = results.at(-1) ?? at;
    if (results.length > 0) continue;
    if (takesNoResults(current)) at = { version: Infinity, line: 0 };
    else if (!(await hasChanged())) return;
  }
  if (isWanted(false)) yield* unanswered(deps, current, at.line);
  while (!isTerminal(current.status)) if (!(await hasChanged())) return;
  yield Buffer.from(`${JSON.stringify({ object: 'batch.results_end', batch_id: batch.id, status: current.status })}\n`);
}

const takesNoResults = ({ status }: BatchRow): boolean => isTerminal(status) || status === 'finalizing';

/** The position of a cursor; null is the start. Throws invalid_request. */
export function parseCursor(text: string | null): SettledAt {
  if (text === null) return { version: 0, line: 0 };
  const [, version, line] = /^(\d{1,10}|end)\.(\d{1,10})$/.exec(text) ?? [];
  if (version !== undefined) return { version: version === 'end' ? Infinity : Number(version), line: Number(line) };
  const message = "Invalid 'after': expected the 'cursor' of a line from this route, such as 12.345.";
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}

/** Every result line begins with `{` and a member. */
const headOf = ({ version, line }: SettledAt): Buffer =>
  Buffer.from(`{"cursor":"${version === Infinity ? 'end' : version}.${line}",`);

const lineEnd = Buffer.from('\n');

async function* linesOf(
  deps: StreamDeps,
  batch: BatchRow,
  results: readonly (StoredResult & SettledAt)[],
): AsyncGenerator<Buffer> {
  for (const page of inPages(results)) {
    const [first] = page;
    if (first && first.bytes > pieceBytesMax) {
      yield* largeLine(deps, batch, first);
      continue;
    }
    // The page exists as it was read and as it is sent.
    const free = await deps.reserve(2 * page.reduce((sum, { bytes }) => sum + bytes, 0));
    try {
      const read = await deps.read(() => readResults(deps, batch, page));
      yield Buffer.concat(page.flatMap((at) => [headOf(at), (read.get(at.line) as Buffer).subarray(1), lineEnd]));
    } finally {
      free();
    }
  }
}

async function* largeLine(deps: StreamDeps, batch: BatchRow, result: StoredResult & SettledAt): AsyncGenerator<Buffer> {
  const free = await deps.reserve(pieceBytesMax);
  try {
    yield headOf(result);
    let isFirst = true;
    for await (const part of readParts(deps, batch, result)) {
      yield isFirst ? part.subarray(1) : part;
      isFirst = false;
    }
    yield lineEnd;
  } finally {
    free();
  }
}

/** The error lines of requests that were never answered, after a line. */
async function* unanswered(deps: StreamDeps, batch: BatchRow, after: number): AsyncGenerator<Buffer> {
  if (batch.completed + batch.failed >= batch.total) return;
  for (let first = after + 1; first <= batch.total;) {
    const window = { first, end: Math.min(first + windowLines, batch.total + 1) };
    const customIds = new Map<number, Buffer>();
    const end = await deps.read(() =>
      scanRequests(deps, batch, window, ({ line, bytes }) => {
        const customId = memberValue(bytes, 'custom_id');
        if (customId !== undefined) customIds.set(line, Buffer.from(customId));
      }),
    );
    const stored = await deps.read(() => listResults(deps.db, batch, { first, end }));
    const answered = new Set(stored.map(({ line }) => line));
    const lines: Buffer[] = [];
    for (let line = first; line < end; line += 1) {
      if (answered.has(line)) continue;
      const data = unansweredLine(batch, line, customIds.get(line));
      lines.push(headOf({ version: Infinity, line }), data.subarray(1), lineEnd);
    }
    if (lines.length > 0) yield Buffer.concat(lines);
    first = end;
  }
}
