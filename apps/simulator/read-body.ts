import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import { Refusal } from './wire/wire-format.ts';

/** A JSON body; `text` is the exact text that was received. */
export type Body = { text: string; json: Record<string, unknown> };

// How long a client can continue to send a rejected body, so that it can still read the error.
const drainMs = 1_000;
const nothing = Buffer.alloc(0);

/**
 * Reads a body of up to `maxBytes`; calls back in the tick of the last byte, with the bytes or with a Refusal (413). Never
 * calls back if the client disconnects.
 */
export function readBody(request: IncomingMessage, maxBytes: number, done: (body: Buffer | Refusal) => void): void {
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
    if (!refused) done(more === undefined ? (first ?? nothing) : Buffer.concat(more));
  });
  request.on('error', ignore);
}

// The client disconnected while sending; the exchange handles the close.
function ignore(): void {}

/** Parses a JSON object in UTF-8; throws Refusal (400) for anything else. */
export function parseJsonBody(bytes: Buffer): Body {
  if (!isUtf8(bytes)) throw malformed();
  const text = bytes.toString();
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    throw malformed();
  }
  if (typeof json !== 'object' || json === null || Array.isArray(json)) throw malformed();
  return { text, json: json as Record<string, unknown> };
}

/** Parses a multipart body; rejects with Refusal (400) for anything else. */
export async function parseForm(bytes: Buffer, contentType: string | undefined): Promise<FormData> {
  if (contentType === undefined || !/^multipart\/form-data\b/i.test(contentType)) {
    const message = `Invalid Content-Type header (${contentType ?? 'none'}): expected multipart/form-data with a boundary.`;
    throw new Refusal({ status: 400, message, type: 'invalid_request_error' });
  }
  try {
    return await new Response(new Uint8Array(bytes), { headers: { 'content-type': contentType } }).formData();
  } catch (cause) {
    const message = 'Could not parse multipart form: a part or the boundary is malformed.';
    throw new Refusal({ status: 400, message, type: 'invalid_request_error' }, { cause });
  }
}

function malformed(): Refusal {
  return new Refusal({
    status: 400,
    message: 'We could not parse the JSON body of your request: a JSON object, encoded as UTF-8, was expected.',
    type: 'invalid_request_error',
  });
}
