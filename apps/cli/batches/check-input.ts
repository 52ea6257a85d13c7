import { createHash, hash } from 'node:crypto';
import { open, stat } from 'node:fs/promises';
import { CliError } from '../server/cli-error.ts';
import { unreadableFile } from '../terminal/file-problem.ts';

export type CheckedInput = {
  file: string;
  bytes: number;
  lines: number;
  /** As a hex string. */
  sha256: string;
  /** The `url` of all lines. */
  endpoint: string;
};

const lineBytesMax = 16 * 1_048_576;
const problemsMax = 20;
/**
 * IDs are compared up to this many lines; the server compares all of them. A 48-bit number per ID takes about 80 MB in
 * total.
 */
const comparedMax = 2_000_000;

/**
 * Reads an input file of a batch and makes the checks that do not need the server: each line is a JSON object with
 * `custom_id`, `method`, `url` and `body`, the IDs are unique, and all lines have the same URL. Throws CliError with the
 * first 20 problems by line.
 */
export async function checkInput(file: string, onProgress: (bytes: number, of: number) => void): Promise<CheckedInput> {
  const found = await stat(file).catch((error: unknown) => {
    throw unreadableFile(file, error);
  });
  if (!found.isFile()) throw new CliError(`${file} is not a regular file. Write the lines to a regular file first.`);
  const problems: string[] = [];
  const report = (line: number, text: string): void => {
    if (problems.length < problemsMax) problems.push(`${file}:${line}: ${text}`);
  };
  const seen = new Set<number>();
  const maybeRepeated = new Set<number>();
  const sha256 = createHash('sha256');
  let [bytes, lines] = [0, 0];
  let endpoint: string | null = null;
  const onBytes = (piece: Buffer): void => {
    sha256.update(piece);
    bytes += piece.length;
    onProgress(bytes, found.size);
  };
  for await (const { text, number } of linesOf(file, onBytes)) {
    if (text === '') continue;
    lines += 1;
    const request = readRequest(text);
    if (typeof request === 'string') {
      report(number, request);
      continue;
    }
    endpoint ??= request.url;
    if (request.url !== endpoint)
      report(number, `url is ${request.url}, but the first line has ${endpoint}. All lines must have the same url.`);
    if (lines > comparedMax) continue;
    const short = shortHash(request.customId);
    if (seen.has(short)) maybeRepeated.add(short);
    else seen.add(short);
  }
  if (maybeRepeated.size > 0) await findRepeated(file, maybeRepeated, report);
  if (lines === 0) throw new CliError(`${file} has no lines. Each line must be a request.`);
  if (problems.length > 0) {
    const more = problems.length === problemsMax ? ['Only the first 20 problems are listed.'] : [];
    throw new CliError(['The input is invalid. Nothing was sent.', ...problems, ...more].join('\n  '));
  }
  return { file, bytes, lines, sha256: sha256.digest('hex'), endpoint: endpoint ?? '' };
}

/** Two IDs can share their short hash, so the lines with a shared hash are read again, and their full IDs are compared. */
async function findRepeated(file: string, short: ReadonlySet<number>, report: (line: number, text: string) => void) {
  const first = new Map<string, number>();
  for await (const { text, number } of linesOf(file, () => undefined)) {
    const request = text === '' ? '' : readRequest(text);
    if (typeof request === 'string' || !short.has(shortHash(request.customId))) continue;
    const before = first.get(request.customId);
    if (before === undefined) first.set(request.customId, number);
    else
      report(
        number,
        `custom_id ${JSON.stringify(request.customId)} is already used in line ${before}. Each custom_id must be unique.`,
      );
  }
}

const shortHash = (text: string): number => hash('sha256', text, 'buffer').readUIntBE(0, 6);

/** The ID and URL of a request, or a description of the line's problem. */
function readRequest(text: string): { customId: string; url: string } | string {
  let request: Record<string, unknown>;
  try {
    request = JSON.parse(text) as Record<string, unknown>;
  } catch (error) {
    return `not valid JSON: ${error instanceof Error ? error.message : String(error)}`;
  }
  if (typeof request !== 'object' || request === null || Array.isArray(request)) return 'must be a JSON object.';
  const { custom_id: customId, method, url, body } = request;
  if (typeof customId !== 'string' || customId === '') return 'custom_id must be a non-empty string.';
  if (method !== 'POST') return 'method must be "POST".';
  if (typeof url !== 'string' || !url.startsWith('/v1/'))
    return 'url must be an endpoint, such as "/v1/chat/completions".';
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return 'body must be a JSON object.';
  return { customId, url };
}

/** The lines of a file with their numbers, from 1. Throws CliError for a line of more than 16 MiB. */
async function* linesOf(
  file: string,
  onBytes: (piece: Buffer) => void,
): AsyncGenerator<{ text: string; number: number }> {
  let rest: Buffer[] = [];
  let restBytes = 0;
  let number = 0;
  const handle = await open(file).catch((error: unknown) => {
    throw unreadableFile(file, error);
  });
  const pieces = handle.createReadStream({ highWaterMark: 262_144 }) as AsyncIterable<Buffer>;
  for await (const piece of pieces) {
    onBytes(piece);
    let from = 0;
    for (let end = piece.indexOf(10); end !== -1; end = piece.indexOf(10, from)) {
      number += 1;
      const line = piece.subarray(from, end);
      yield { number, text: (restBytes === 0 ? line : Buffer.concat([...rest, line])).toString('utf8').trim() };
      [rest, restBytes, from] = [[], 0, end + 1];
    }
    if (from === piece.length) continue;
    rest.push(piece.subarray(from));
    restBytes += piece.length - from;
    if (restBytes > lineBytesMax) throw new CliError(`${file}:${number + 1}: the line is larger than 16 MiB.`);
  }
  if (restBytes > 0) yield { number: number + 1, text: Buffer.concat(rest).toString('utf8').trim() };
}
