import { EventStreamCodec } from '@smithy/eventstream-codec';
import { describe, expect, test } from 'vitest';
import type { StreamEvent } from '#libs/providers/provider.ts';
import { openEventFraming } from './framing.ts';

const codec = new EventStreamCodec(
  (bytes) => Buffer.from(bytes as Uint8Array).toString('utf8'),
  (text) => Buffer.from(text, 'utf8'),
);
const frame = (headers: Record<string, string>, payload: string): Buffer =>
  Buffer.from(
    codec.encode({
      headers: Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, { type: 'string', value }])),
      body: Buffer.from(payload),
    }),
  );
const event = (type: string, payload: string) => frame({ ':event-type': type, ':message-type': 'event' }, payload);

const bytes = Buffer.concat([
  event('messageStart', '{"role":"assistant"}'),
  event('contentBlockDelta', '{"delta":{"text":"Grüße 😀"}}'),
  frame({ ':exception-type': 'throttlingException', ':message-type': 'exception' }, '{"message":"slow"}'),
  frame({ ':message-type': 'error', ':error-code': 'Internal', ':error-message': 'oops' }, ''),
  event('empty', ''),
]);
const events = [
  { event: 'messageStart', data: '{"role":"assistant"}' },
  { event: 'contentBlockDelta', data: '{"delta":{"text":"Grüße 😀"}}' },
  { event: 'throttlingException', data: '{"message":"slow"}' },
  { event: 'error', data: '{"message":"oops","code":"Internal"}' },
  { event: 'empty', data: '' },
];

function read(pieces: Iterable<Buffer>, eventBytesMax = 1_000): StreamEvent[] {
  const found: StreamEvent[] = [];
  const framing = openEventFraming((each) => void found.push(each), eventBytesMax);
  for (const piece of pieces) framing.push(piece);
  framing.end();
  return found;
}

describe('the event stream', () => {
  test('is the same wherever it is cut, also byte by byte', () => {
    expect(read([bytes])).toEqual(events);
    expect(read(Array.from(bytes, (byte) => Buffer.of(byte)))).toEqual(events);
    for (let at = 0; at <= bytes.length; at += 1) {
      expect(read([bytes.subarray(0, at), Buffer.alloc(0), bytes.subarray(at)])).toEqual(events);
    }
  });

  test('that ends early gives the events that came whole', () => {
    for (let at = 0; at < bytes.length; at += 1) {
      const found = read([bytes.subarray(0, at)]);
      expect(found).toEqual(events.slice(0, found.length));
      expect(found.length).toBeLessThan(events.length);
    }
  });

  test('with any one bit flipped never gives another event', () => {
    for (let at = 0; at < bytes.length; at += 1) {
      const damaged = Buffer.from(bytes);
      damaged[at] = (damaged[at] ?? 0) ^ (1 << (at % 8));
      const found: StreamEvent[] = [];
      const framing = openEventFraming((each) => void found.push(each), 1_000);
      expect(() => framing.push(damaged)).toThrow(/damaged|checksum|invalid length/);
      expect(found).toEqual(events.slice(0, found.length));
    }
  });

  test('is not waited for when it claims more than there may be', () => {
    const large = event('big', 'x'.repeat(2_000));
    expect(() => read([large.subarray(0, 12)])).toThrow(/invalid length of \d+ bytes/);
    expect(read([large], large.length)).toHaveLength(1);
    expect(() => read([large], large.length - 1)).toThrow(/invalid length/);
  });

  test('that is no such stream is refused at its first bytes', () => {
    expect(() => read([Buffer.from('{"message":"hello"}')])).toThrow(/damaged prelude/);
  });
});
