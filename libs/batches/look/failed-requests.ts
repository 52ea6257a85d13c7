import { batchLineId } from '#libs/kernel/ids.ts';
import { forEachLine } from '#libs/validation/json-lines.ts';

/** Which lines of an ended batch: those that were answered with an error, those that were never called, or both. */
export type FailedLines = 'failed' | 'unfinished' | 'all_failed';

type FailedLine = { id: string; isUnfinished: boolean };

/** Every line of an error file begins like this, and that of a line that was never called is short (result-line.ts). */
const idShape = /^\{"id":"([^"]{1,100})"/;
const unfinishedShape = /,"response":null,"error":\{"code":"batch_(?:expired|cancelled)"/;
const headBytes = 4_096;

/**
 * Yields the requests of an input file whose lines are in the error file of their batch, with their line feeds and
 * otherwise byte for byte. Both files are in the order of their lines, so each is read once, and only one piece and one
 * line of each are in memory.
 */
export async function* failedRequests(
  batchId: string,
  files: { input: AsyncIterable<Buffer>; error: AsyncIterable<Buffer> },
  which: FailedLines,
): AsyncGenerator<Buffer> {
  const failed = failedLines(files.error);
  let next = (await failed.next()).value;
  let line = 0;
  for await (const requests of wholeLines(files.input)) {
    const wanted: Buffer[] = [];
    const found: Buffer[] = [];
    forEachLine(requests, (start, end, blank) => {
      if (!blank) found.push(requests.subarray(start, end));
    });
    for (const request of found) {
      line += 1;
      if (next === undefined) break;
      if (next.id !== batchLineId(batchId, line)) continue;
      if (which === 'all_failed' || next.isUnfinished === (which === 'unfinished')) wanted.push(request, lineFeed);
      next = (await failed.next()).value;
    }
    if (wanted.length > 0) yield Buffer.concat(wanted);
    if (next === undefined) break;
  }
  if (next !== undefined) throw new Error(`the error file of batch ${batchId} has lines that its input does not have`);
}

const lineFeed = Buffer.from('\n');

/** The source in pieces that end with a line. */
async function* wholeLines(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let rest: Buffer[] = [];
  for await (const piece of source) {
    const end = piece.lastIndexOf(0x0a) + 1;
    if (end === 0) {
      rest.push(piece);
      continue;
    }
    yield Buffer.concat([...rest, piece.subarray(0, end)]);
    rest = end < piece.length ? [piece.subarray(end)] : [];
  }
  if (rest.length > 0) yield Buffer.concat(rest);
}

/** The lines of an error file by their beginnings, so that memory does not depend on the size of an answer. */
async function* failedLines(content: AsyncIterable<Buffer>): AsyncGenerator<FailedLine, undefined> {
  let head = '';
  const add = (bytes: Buffer): void => {
    if (head.length < headBytes) head += bytes.toString('latin1', 0, headBytes - head.length);
  };
  for await (const piece of content) {
    let from = 0;
    for (let end = piece.indexOf(0x0a); end !== -1; end = piece.indexOf(0x0a, from)) {
      add(piece.subarray(from, end));
      yield { id: idShape.exec(head)?.[1] ?? '', isUnfinished: unfinishedShape.test(head) };
      head = '';
      from = end + 1;
    }
    add(piece.subarray(from));
  }
  return undefined;
}
