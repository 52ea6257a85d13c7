import { isDeepStrictEqual } from 'node:util';
import { expect } from 'vitest';
import { findProvider } from '#libs/providers/registry.ts';
import { streaming, type ConformanceClient } from './conformance-client.ts';
import type { ConformanceCase, AnswerCase } from './conformance-case.ts';
import { comparable, readChunks, type Chunk, type Read } from './read-answer.ts';
import { framesOf } from './payloads.ts';
import { frameInTwo, replay, toCall, type Replayed } from './replay.ts';

type Options = { conformanceCase: ConformanceCase; client: ConformanceClient; answer: AnswerCase };

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
  const wrong: [at: number, complaint: string][] = [];
  for (const at of offsets.filter((at) => bytes.length <= everyByteMax || near.has(at) || at % 211 === 0)) {
    const cut = await replay(translation, call, [bytes.subarray(0, at)]);
    const complaint = complaintOf(cut.error, readOf(cut), complete);
    if (complaint !== null) wrong.push([at, complaint]);
  }
  expect(wrong).toEqual([]);

  for (const at of [0.1, 0.35, 0.6, 0.85].map((part) => Math.floor(bytes.length * part))) {
    client.play(streaming(conformanceCase, stream, { splitAt: at }));
    const split = await client.stream(request);
    expect(split.error).toBeNull();
    expect(comparable(readChunks(split.chunks))).toEqual(comparable(complete));
    client.play(streaming(conformanceCase, stream, { truncateAt: at, drop: at % 2 === 0 }));
    const cut = await client.stream(request).catch((error: unknown) => ({ error, chunks: [] }));
    const lost = cut.error as { code: string } | null;
    const error = lost && lost.code.replace('connection_lost', 'truncated');
    expect([at, complaintOf(error, readChunks(cut.chunks), complete)]).toEqual([at, null]);
  }
  expect(complete.finishReason).toBe(says.finishReason);
}

/**
 * What is wrong with a stream that was cut off: it is complete but for its usage, or it is an error and what was sent before is a
 * beginning of it. Without `expect`, which costs more than the stream itself.
 */
function complaintOf(error: string | null, read: Read, complete: Read): string | null {
  if (error === null) {
    const [seen, wanted] = [read, complete].map((one) => comparable({ ...one, usage: null }));
    return isDeepStrictEqual(seen, wanted) ? null : `taken for complete: ${JSON.stringify(seen)}`;
  }
  if (!/^upstream_(truncated|invalid_response)$/.test(error)) return `ended with ${error}`;
  if (!(complete.text ?? '').startsWith(read.text ?? '')) return `sent ${read.text}`;
  const stray = read.toolCalls.find(
    (call, index) => complete.toolCalls[index]?.function.arguments.startsWith(call.function.arguments) !== true,
  );
  return stray === undefined ? null : `sent ${JSON.stringify(stray)}`;
}

function readOf({ payloads }: Replayed): Read {
  return readChunks(payloads.map((payload) => JSON.parse(payload) as Chunk));
}

/** Ids and times that are made here differ from one stream to the next. */
function unstamped({ payloads, error }: Replayed): unknown {
  const chunks = payloads.map((payload) => ({ ...(JSON.parse(payload) as Chunk), id: '', created: 0 }));
  return { chunks, error };
}
