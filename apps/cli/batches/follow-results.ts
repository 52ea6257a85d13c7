import { setTimeout as wait } from 'node:timers/promises';
import { ApiError, CliError, UnreachableError } from '../server/cli-error.ts';
import { readPieces, type Client } from '../server/http-client.ts';
import { writePiece } from './download.ts';

const waitSeconds = 30;
const retryMs = 3_000;
/** The command gives up if the server does not answer for this long. */
const unavailableMsMax = 300_000;

/**
 * Prints the result lines of a batch as they are settled, until it has ended. `onCursor` gets the cursor of each printed
 * line. An interrupted connection is continued after the last one. Throws ApiError, UnreachableError, and the reason of
 * `signal`.
 */
export async function followResults(
  client: Client,
  id: string,
  after: string | undefined,
  { signal, onCursor }: { signal: AbortSignal; onCursor: (cursor: string) => void },
): Promise<void> {
  let cursor = after;
  let lastAnswerMs = performance.now();
  for (;;) {
    const startedMs = performance.now();
    const startedAt = cursor;
    try {
      const query = { after: cursor, wait: String(waitSeconds) };
      const response = await client.open('GET', `/v1/batches/${encodeURIComponent(id)}/results`, { query, signal });
      for await (const line of readLines(readPieces(response, client.server))) {
        lastAnswerMs = performance.now();
        const [head, found] = /^\{"cursor":"([\w.]+)",/.exec(line.toString('latin1', 0, 40)) ?? [];
        if (head === undefined || found === undefined) return; // the end of the batch
        await writePiece(process.stdout, Buffer.concat([brace, line.subarray(head.length), lineEnd]));
        cursor = found;
        onCursor(found);
      }
      lastAnswerMs = performance.now();
      // A proxy or a stopping server can end responses early.
      if (cursor === startedAt) await wait(Math.max(0, retryMs - (lastAnswerMs - startedMs)), undefined, { signal });
    } catch (error) {
      signal.throwIfAborted();
      const isUnavailable = error instanceof UnreachableError || (error instanceof ApiError && error.status >= 500);
      if (!isUnavailable || performance.now() - lastAnswerMs > unavailableMsMax) throw error;
      await wait(retryMs, undefined, { signal });
    }
  }
}

const brace = Buffer.from('{');
const lineEnd = Buffer.from('\n');

/** Whole lines, without their ends. An unfinished line at the end is dropped. Throws CliError for one of 512 MiB. */
async function* readLines(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  let rest: Buffer[] = [];
  let bytes = 0;
  for await (const piece of pieces) {
    const buffer = Buffer.from(piece);
    let from = 0;
    for (let end = buffer.indexOf(0x0a); end !== -1; end = buffer.indexOf(0x0a, from)) {
      yield Buffer.concat([...rest, buffer.subarray(from, end)]);
      [rest, bytes, from] = [[], 0, end + 1];
    }
    rest.push(buffer.subarray(from));
    bytes += buffer.length - from;
    if (bytes > 536_870_912) throw new CliError('A result of the batch is larger than 512 MiB.');
  }
}
