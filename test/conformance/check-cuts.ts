import { expect } from 'vitest';
import { findProvider } from '#libs/providers/registry.ts';
import { streaming, type ConformanceClient } from './conformance-client.ts';
import type { ConformanceCase, RecordedAnswer } from './conformance-case.ts';
import { comparable, readChunks, type Chunk, type Read } from './read-answer.ts';
import { framesOf } from './recordings.ts';
import { frameInTwo, replay, toCall, type Replayed } from './replay.ts';

type Options = { conformanceCase: ConformanceCase; client: ConformanceClient; answer: RecordedAnswer };

/** Up to so many bytes a stream is cut off at each; a longer one around the end of each event, and now and then. */
const everyByteMax = 3_000;

/**
 * Splits a stream at every byte, and cuts it off. Decoders see events only, so that the same events from any two pieces
 * are the same stream: the framing alone is tried at every byte of all streams, the rest of the core at fewer.
 */
export async function checkCuts({ conformanceCase, client, answer }: Options): Promise<void> {
  const { stream, request = {}, says } = answer;
  const translation = findProvider(conformanceCase.provider)?.operations.chat;
  if (!stream || !translation) return;
  const frames = framesOf(conformanceCase.wire, stream);
  const bytes = Buffer.concat(frames);
  const offsets = Array.from(bytes, (_byte, at) => at);

  // Between its neighbours, so that a long stream costs no more for each byte than a short one.
  for (const [index, frame] of frames.entries()) {
    const before = frames[index - 1] ?? Buffer.alloc(0);
    const window = Buffer.concat([before, frame, frames[index + 1] ?? Buffer.alloc(0)]);
    const events = JSON.stringify(frameInTwo(translation, window, 0));
    const wrong = Array.from(frame, (_byte, at) => before.length + at).filter(
      (at) => JSON.stringify(frameInTwo(translation, window, at)) !== events,
    );
    expect([index, wrong]).toEqual([index, []]);
  }

  const body = {
    model: conformanceCase.model,
    messages: [{ role: 'user', content: 'Hello' }],
    ...request,
    stream: true,
  };
  const call = toCall(Buffer.from(JSON.stringify(body)));
  const reference = await replay(translation, call, [bytes]);
  expect(reference.error).toBeNull();
  const dripped = await replay(
    translation,
    call,
    Array.from(bytes, (byte) => Buffer.of(byte)),
  );
  expect(unstamped(dripped)).toEqual(unstamped(reference));
  const complete = readOf(reference);

  const near = new Set<number>();
  let edge = 0;
  for (const frame of frames) {
    edge += frame.length;
    for (const at of [edge - 2, edge - 1, edge, edge + 1]) near.add(at);
  }
  for (const at of offsets.filter((at) => bytes.length <= everyByteMax || near.has(at) || at % 211 === 0)) {
    const cut = await replay(translation, call, [bytes.subarray(0, at)]);
    expectBeginning(at, cut.error, readOf(cut), complete);
  }

  for (const at of [0.1, 0.35, 0.6, 0.85].map((part) => Math.floor(bytes.length * part))) {
    client.play(streaming(conformanceCase, stream, { splitAt: at }));
    const split = await client.stream(request);
    expect(split.error).toBeNull();
    expect(comparable(readChunks(split.chunks))).toEqual(comparable(complete));
    client.play(streaming(conformanceCase, stream, { truncateAt: at, drop: at % 2 === 0 }));
    const cut = await client.stream(request).catch((error: unknown) => ({ error, chunks: [] }));
    const lost = cut.error as { code: string } | null;
    expectBeginning(at, lost && lost.code.replace('connection_lost', 'truncated'), readChunks(cut.chunks), complete);
  }
  expect(complete.finishReason).toBe(says.finishReason);
}

/** A stream that was cut off is complete but for its usage, or it is an error and what was told is a beginning of it. */
function expectBeginning(at: number, error: string | null, read: Read, complete: Read): void {
  if (error === null) {
    expect([at, comparable({ ...read, usage: null })]).toEqual([at, comparable({ ...complete, usage: null })]);
    return;
  }
  expect([at, error]).toEqual([at, expect.stringMatching(/^upstream_(truncated|invalid_response)$/)]);
  expect([at, (complete.text ?? '').startsWith(read.text ?? '')]).toEqual([at, true]);
  for (const [index, call] of read.toolCalls.entries())
    expect([at, complete.toolCalls[index]?.function.arguments.startsWith(call.function.arguments)]).toEqual([at, true]);
}

function readOf({ payloads }: Replayed): Read {
  return readChunks(payloads.map((payload) => JSON.parse(payload) as Chunk));
}

/** Ids and times that are made here differ from one stream to the next. */
function unstamped({ payloads, error }: Replayed): unknown {
  const chunks = payloads.map((payload) => ({ ...(JSON.parse(payload) as Chunk), id: '', created: 0 }));
  return { chunks, error };
}
