import { EventStreamCodec } from '@smithy/eventstream-codec';
import type { Failure, StreamForm } from '#apps/simulator/wire/wire-format.ts';

const codec = new EventStreamCodec(
  (bytes) => (typeof bytes === 'string' ? bytes : Buffer.from(bytes).toString()),
  (text) => Buffer.from(text),
);

/** One event of application/vnd.amazon.eventstream, checksums included. */
export function eventFrame(type: string, payload: unknown): Uint8Array {
  return frame(
    { ':event-type': type, ':content-type': 'application/json', ':message-type': 'event' },
    JSON.stringify(payload),
  );
}

export const eventStreamForm: StreamForm = {
  contentType: 'application/vnd.amazon.eventstream',
  errorFrame(failure) {
    const headers = {
      ':exception-type': exceptionOf(failure),
      ':content-type': 'application/json',
      ':message-type': 'exception',
    };
    return frame(headers, JSON.stringify({ message: failure.message }));
  },
  // An error that is not part of the service's model has no payload at all.
  strayErrorFrame: ({ message }) =>
    frame({ ':message-type': 'error', ':error-code': 'InternalFailure', ':error-message': message }, ''),
  brokenFrame: frame(
    { ':event-type': 'contentBlockDelta', ':content-type': 'application/json', ':message-type': 'event' },
    '{"contentBlockIndex":0,"delta":{',
  ),
  idleFrame: undefined,
  damage(given) {
    const bytes = Uint8Array.from(typeof given === 'string' ? Buffer.from(given) : given);
    const at = bytes.length - 6; // the second-to-last byte of the payload: the checksum no longer matches
    bytes[at] = (bytes[at] ?? 0) ^ 1;
    return bytes;
  },
};

function exceptionOf({ status }: Failure): string {
  switch (status) {
    case 400:
      return 'validationException';
    case 429:
      return 'throttlingException';
    case 500:
      return 'internalServerException';
    case 503:
    case 529:
      return 'serviceUnavailableException';
    default:
      return 'modelStreamErrorException';
  }
}

function frame(headers: Record<string, string>, payload: string): Uint8Array {
  const typed = Object.entries(headers).map(([name, value]) => [name, { type: 'string' as const, value }] as const);
  return codec.encode({ headers: Object.fromEntries(typed), body: Buffer.from(payload) });
}
