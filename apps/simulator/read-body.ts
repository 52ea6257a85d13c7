import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import { Refusal } from './wire/wire-format.ts';

/** A body of which no byte was altered: `text` is exactly what was sent. */
export type Body = { text: string; json: Record<string, unknown> };

// How long a client may go on sending a body that was refused, so that it gets to read the refusal.
const drainMs = 1_000;

/**
 * Reads and parses a JSON body of at most `maxBytes`; calls back in the tick of the last byte, with the body or with a
 * Refusal (413, or 400 for what is not a JSON object in UTF-8). Calls back never when the client leaves.
 */
export function readBody(request: IncomingMessage, maxBytes: number, done: (body: Body | Refusal) => void): void {
  let first: Buffer | undefined;
  let more: Buffer[] | undefined;
  let sizeBytes = 0;
  let refused = false;
  const refuseSize = (): void => {
    refused = true;
    first = more = undefined;
    const timer = setTimeout(() => request.destroy(), drainMs);
    request.on('close', () => clearTimeout(timer));
    const message = `The request body is larger than ${maxBytes} bytes.`;
    done(new Refusal({ status: 413, message, type: 'invalid_request_error', code: 'request_too_large' }));
  };
  if (Number(request.headers['content-length'] ?? 0) > maxBytes) refuseSize();
  request.on('data', (chunk: Buffer) => {
    if (refused) return;
    sizeBytes += chunk.length;
    if (sizeBytes > maxBytes) refuseSize();
    else if (first === undefined) first = chunk;
    else (more ??= [first]).push(chunk);
  });
  request.on('end', () => {
    if (!refused) done(parse(more === undefined ? first : Buffer.concat(more)));
  });
  request.on('error', () => {}); // the client left while it was sending: the exchange sees the close
}

function parse(bytes: Buffer | undefined): Body | Refusal {
  const malformed = (): Refusal =>
    new Refusal({
      status: 400,
      message: 'We could not parse the JSON body of your request: a JSON object, encoded as UTF-8, was expected.',
      type: 'invalid_request_error',
    });
  if (bytes === undefined || !isUtf8(bytes)) return malformed();
  const text = bytes.toString();
  try {
    const json: unknown = JSON.parse(text);
    if (typeof json !== 'object' || json === null || Array.isArray(json)) return malformed();
    return { text, json: json as Record<string, unknown> };
  } catch {
    return malformed();
  }
}
