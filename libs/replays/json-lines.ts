import { batchLineId } from '#libs/kernel/ids.ts';

/** A line of a file; `value` is undefined if it is not valid JSON or too large. */
type JsonLine = { value: unknown; head: string };

/** Larger lines of results are not compared. They contain images or audio. */
const resultBytesMax = 2 * 1_048_576;
/** The beginning of such a line, which has the members that precede the answer (libs/batches/results/result-line.ts). */
const headBytes = 8_192;

/** Yields the lines of a file that are not blank. Uses memory for one line and one piece of the source. */
export async function* readJsonLines(
  source: AsyncIterable<Buffer>,
  lineBytesMax = resultBytesMax,
): AsyncGenerator<JsonLine> {
  let parts: Buffer[] = [];
  let bytes = 0;
  const add = (part: Buffer): void => {
    if (bytes <= lineBytesMax) parts.push(part);
    bytes += part.length;
  };
  const takeLine = (): JsonLine | null => {
    const line = Buffer.concat(parts);
    const isWhole = bytes <= lineBytesMax;
    [parts, bytes] = [[], 0];
    const text = line.toString('utf8', 0, isWhole ? line.length : headBytes);
    if (text.trim() === '') return null;
    return { value: isWhole ? parse(text) : undefined, head: text.slice(0, headBytes) };
  };
  for await (const piece of source) {
    let from = 0;
    for (let end = piece.indexOf(0x0a); end !== -1; end = piece.indexOf(0x0a, from)) {
      add(piece.subarray(from, end));
      from = end + 1;
      const line = takeLine();
      if (line !== null) yield line;
    }
    add(piece.subarray(from));
  }
  const last = takeLine();
  if (last !== null) yield last;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** A line of the output or error file of a batch. */
export type ResultLine = {
  line: number;
  customId: string | null;
  /** The HTTP status of the answer; 0 without one. */
  status: number;
  /** The answer; undefined if there is none, or if it is too large. */
  body: unknown;
};

type RawResult = {
  id?: string;
  custom_id?: string | null;
  response?: { status_code?: number; body?: unknown } | null;
};

/** Yields the results of a batch that has ended, in the order of its lines. Its output and error files have that order, too. */
export async function* readResultLines(
  batch: { id: string; total: number },
  sources: readonly AsyncGenerator<JsonLine>[],
): AsyncGenerator<ResultLine> {
  try {
    const heads = await Promise.all(sources.map(nextResult));
    for (let line = 1; line <= batch.total; line += 1) {
      const id = batchLineId(batch.id, line);
      const at = heads.findIndex((head) => head?.id === id);
      const { custom_id: customId = null, response } = heads[at] ?? {};
      yield { line, customId, status: response?.status_code ?? 0, body: response?.body };
      const source = sources[at];
      if (source !== undefined) heads[at] = await nextResult(source);
    }
  } finally {
    await Promise.all(sources.map((source) => source.return(undefined)));
  }
}

async function nextResult(source: AsyncGenerator<JsonLine>): Promise<RawResult | undefined> {
  const { done, value } = await source.next();
  if (done === true) return undefined;
  return (value.value as RawResult | undefined) ?? readHead(value.head);
}

const headShape = /^\{"id":("[^"]*"),"custom_id":("(?:[^"\\]|\\.)*"),"response":\{"status_code":(\d+)/;

function readHead(head: string): RawResult {
  const [, id = 'null', customId = 'null', status = '0'] = headShape.exec(head) ?? [];
  return {
    id: JSON.parse(id) as string,
    custom_id: JSON.parse(customId) as string,
    response: { status_code: Number(status) },
  };
}
