import { expect } from 'vitest';
import { payloadSets, readPayload, readPayloadLines } from '#test/fixtures/provider-payloads.ts';
import type { AnswerCase, Lines, Whole, Wire } from './conformance-case.ts';

/** The bytes of a whole answer, as the provider sends them. */
export function wholeBytes(source: Whole): Buffer {
  if ('fixture' in source) return readPayload(source.fixture, source.set);
  return Buffer.from(typeof source.body === 'string' ? source.body : JSON.stringify(source.body));
}

/** The events of a stream, one JSON text each. */
export function linesOf(source: Lines): string[] {
  return 'fixture' in source ? readPayloadLines(source.fixture, source.set) : source.lines.map(asLine);
}

function asLine(line: unknown): string {
  return typeof line === 'string' ? line : JSON.stringify(line);
}

/** A complete stream on the wire, one buffer an event. */
export function framesOf(wire: Wire, source: Lines): Buffer[] {
  const frames = linesOf(source).map((line) => wire.frame(line));
  return wire.end === undefined ? frames : [...frames, wire.end];
}

/**
 * An answer, and the recording that it was written after, where that is here: it says other words, but as much of them,
 * for the same reason and at the same price.
 */
export function withRecording(answer: AnswerCase): AnswerCase[] {
  const { name, whole, stream, says } = answer;
  const fixtures = [whole, stream].some((source) => source !== undefined && 'fixture' in source);
  if (!fixtures || !payloadSets.includes('recorded')) return [answer];
  const { contentBlocks: _own, ...others } = says;
  const recorded: AnswerCase = {
    ...answer,
    name: `${name}, recorded`,
    ...(whole && 'fixture' in whole ? { whole: { ...whole, set: 'recorded' } } : {}),
    ...(stream && 'fixture' in stream ? { stream: { ...stream, set: 'recorded' } } : {}),
    says: {
      ...others,
      text: says.text === null ? null : /./s,
      ...(says.refusal === undefined ? {} : { refusal: /./s }),
      ...(says.toolCalls
        ? {
            toolCalls: says.toolCalls.map(() => ({ name: expect.any(String) as string, arguments: expect.anything() })),
          }
        : {}),
    },
  };
  return [answer, recorded];
}
