import { crc32 } from 'node:zlib';
import { EventStreamCodec } from '@smithy/eventstream-codec';
import type { Framing, StreamEvent } from '../provider.ts';

const codec = new EventStreamCodec(
  (bytes) => Buffer.from(typeof bytes === 'string' ? Buffer.from(bytes) : bytes).toString('utf8'),
  (text) => Buffer.from(text, 'utf8'),
);

/** Total length, length of the headers, and a checksum of both: 4 bytes each, big-endian. */
const preludeBytes = 12;
/** A message without headers and payload: the prelude and the message's checksum. */
const messageBytesMin = 16;

/**
 * Splits `application/vnd.amazon.eventstream` into events: `event` is the `:event-type` of a message, the
 * `:exception-type` of an exception, or `error`; `data` is the JSON text of its payload. Both checksums are verified.
 * The prelude's is verified before waiting for the number of bytes that the prelude announces. Throws Error for a
 * message that is damaged or too large.
 */
export function openEventFraming(onEvent: (event: StreamEvent) => void, eventBytesMax: number): Framing {
  let chunks: Buffer[] = [];
  let held = 0;
  /** How many bytes the next step needs: a prelude, then the whole message. */
  let needed = preludeBytes;
  let preludeRead = false;

  /** Joins the buffered pieces only when the next step is possible, so that a message in many pieces is copied once. */
  const gather = (): Buffer => {
    const [first] = chunks;
    const joined = chunks.length === 1 && first ? first : Buffer.concat(chunks, held);
    chunks = [joined];
    return joined;
  };

  return {
    push: (chunk) => {
      if (chunk.length === 0) return;
      chunks.push(chunk);
      held += chunk.length;
      while (held >= needed) {
        const bytes = gather();
        if (!preludeRead) {
          needed = readPrelude(bytes, eventBytesMax);
          preludeRead = true;
          continue;
        }
        onEvent(readMessage(bytes.subarray(0, needed)));
        chunks = [bytes.subarray(needed)];
        held -= needed;
        needed = preludeBytes;
        preludeRead = false;
      }
    },
    end: () => {}, // The message is unfinished. The core sees that the answer is not complete.
  };
}

function readPrelude(bytes: Buffer, eventBytesMax: number): number {
  const length = bytes.readUInt32BE(0);
  if (crc32(bytes.subarray(0, 8)) !== bytes.readUInt32BE(8)) throw new Error('An event has a damaged prelude.');
  if (length < messageBytesMin || length > eventBytesMax)
    throw new RangeError(`An event has an invalid length of ${length} bytes.`);
  return length;
}

function readMessage(bytes: Buffer): StreamEvent {
  const { headers, body } = codec.decode(bytes);
  const header = (name: string): string | undefined => {
    const value = headers[name]?.value;
    return typeof value === 'string' ? value : undefined;
  };
  const data = Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('utf8');
  switch (header(':message-type') ?? 'event') {
    case 'exception':
      return { event: header(':exception-type') ?? 'error', data };
    case 'error':
      return {
        event: 'error',
        data: JSON.stringify({ message: header(':error-message'), code: header(':error-code') }),
      };
    default:
      return { event: header(':event-type'), data };
  }
}

/** An event of a stream of InvokeModel that contains one of the model's own events. */
export const encodeChunk = (payload: string): Uint8Array =>
  encodeMessage(
    { ':event-type': 'chunk', ':message-type': 'event' },
    { bytes: Buffer.from(payload).toString('base64') },
  );

/** The exception that ends a stream. Its name begins with a small letter there. */
export const encodeException = (name: string, message: string): Uint8Array =>
  encodeMessage(
    { ':exception-type': name.charAt(0).toLowerCase() + name.slice(1), ':message-type': 'exception' },
    { message },
  );

function encodeMessage(names: Readonly<Record<string, string>>, body: object): Uint8Array {
  const all = { ...names, ':content-type': 'application/json' };
  const headers = Object.entries(all).map(([name, value]) => [name, { type: 'string' as const, value }] as const);
  return codec.encode({ headers: Object.fromEntries(headers), body: Buffer.from(JSON.stringify(body)) });
}
