import type { GatewayError } from '#libs/kernel/errors.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Call, ProviderError, StreamEvent, Translation } from '#libs/providers/provider.ts';
import type { Limits, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import type { Flow } from '../egress/exchange.ts';
import { createPayloadQueue } from '../egress/payload-queue.ts';
import { plausibleUsage, type UsedBy } from './plausible-usage.ts';
import type { Faults } from '../provider-faults.ts';
import { eventWorkMax } from './read-body.ts';
import { openSseFraming } from './sse-framing.ts';
import { createStreamMeter } from './stream-meter.ts';
import type { Usage } from '#libs/prices/usage.ts';

type Options = {
  call: Call;
  usedBy: UsedBy;
  translation: Translation;
  flow: Flow;
  faults: () => Faults;
  /** The lease to which incomplete events, and payloads that wait for the reader, are charged. */
  memory?: MemoryLease | undefined;
  limits: Limits;
  idleMs: number;
  /** performance.now() at the start of the attempt. */
  startedAt: number;
};

/** Smaller events are not counted, because their memory is freed immediately. */
const countedBytesMin = 65_536;
/** A text takes two bytes per character if one of its characters is wide. */
const charCopies = 2;
/** The same as for whole answers (read-body.ts). */
const depthMax = 512;

/** The errors with which a complete stream can end. */
const endsFinished: ReadonlySet<string | null> = new Set(['upstream_truncated', 'upstream_idle_timeout']);

/** The kind of the first event: content, or an error before the client has received a byte. */
type FirstEvent =
  | { kind: 'content'; answer: Pick<StreamAnswer, 'events' | 'done'> }
  | { kind: 'error'; error: ProviderError };

export type EventStream = {
  data: (chunk: Buffer) => void;
  end: () => void;
  fail: (error: GatewayError) => void;
  /** Rejects with a GatewayError when the stream ends or breaks off before its first payload. */
  first: Promise<FirstEvent>;
};

/**
 * Reads one provider stream: splits it into events, lets the adapter translate them, meters a copy, and passes the
 * payload texts on with back-pressure. An end without `[DONE]` is only accepted when every choice was finished;
 * otherwise the stream is `upstream_truncated`.
 */
export function openEventStream(options: Options): EventStream {
  const { call, usedBy, translation, flow, faults, memory, limits, idleMs, startedAt } = options;
  const first = Promise.withResolvers<FirstEvent>();
  const done = Promise.withResolvers<StreamSummary>();
  const meter = createStreamMeter();
  const decoder = translation.openStream?.(call);
  let batch: string[] = [];
  let streamBytes = 0;
  let firstEventMs = 0;
  let lastSignAt = performance.now();
  let state: 'peeking' | 'flowing' | 'over' = 'peeking';
  let ending = false;
  /** Bytes since the last complete event, and the bytes that are charged for them. */
  let pendingBytes = 0;
  let pendingHeld = 0;

  const sign = (): void => {
    lastSignAt = performance.now();
  };

  const queue = createPayloadQueue({
    memory,
    charsMax: limits.bufferedCharsMax,
    onFull: flow.pause,
    onDrained: () => {
      sign(); // This process caused the silence.
      flow.resume();
    },
    onLeft: () => flow.abort(faults().callerLeft()),
  });

  const flush = (): void => {
    if (batch.length === 0) return;
    const payloads = batch;
    batch = [];
    queue.push(payloads);
    if (state !== 'peeking') return;
    state = 'flowing';
    firstEventMs = performance.now() - startedAt;
    first.resolve({ kind: 'content', answer: { events: queue.payloads, done: done.promise } });
  };

  const close = (complete: boolean, error: GatewayError | null): void => {
    memory?.give(pendingHeld);
    pendingHeld = 0;
    flush();
    const peeking = state === 'peeking';
    state = 'over';
    if (error) queue.fail(error);
    else queue.end();
    if (peeking && error) first.reject(error);
    const counted = meter.usage();
    const details = counted === null ? null : decoder?.details?.();
    if (counted !== null && details) Object.assign(counted, details);
    done.resolve({
      usage: counted === null ? estimateStreamed(call.body, meter.chars()) : plausibleUsage(counted, usedBy),
      ...(counted === null ? { isEstimate: true } : {}),
      model: meter.model(),
      finishReason: meter.finishReason(),
      complete,
      firstEventMs,
      error,
    });
  };

  const finish = (): void => {
    const usageChunk = call.includeUsage ? meter.missingUsageChunk() : null;
    if (usageChunk !== null) batch.push(usageChunk);
    flow.finish();
    flush();
    if (state === 'peeking') close(false, faults().invalid('returned a stream without any content'));
    else close(true, null);
  };

  const failWith = (error: ProviderError): void => {
    flush();
    if (state === 'peeking') {
      state = 'over';
      flow.finish();
      first.resolve({ kind: 'error', error });
      return;
    }
    const fault = faults().streamError(error);
    close(false, fault);
    flow.abort(fault);
  };

  const onPayload = (payload: string): void => {
    if (state === 'over') return;
    const view = meter.read(payload);
    if (view === 'error') return failWith(translation.decodeError(200, payload));
    if (view === 'unreadable') {
      if (ending) return; // The stream was cut off inside an event and counts as truncated.
      throw faults().invalid('sent an event that is not a JSON object', payload);
    }
    if (view === 'chunk' || call.includeUsage) batch.push(payload);
  };

  const onEvent = (event: StreamEvent): void => {
    sign();
    pendingBytes = 0;
    if (state === 'over') return;
    const parseBytes = event.data.length < countedBytesMin ? 0 : parseCost(event.data);
    memory?.charge(parseBytes);
    try {
      read(event);
    } finally {
      memory?.give(parseBytes);
    }
  };

  /** The memory for parsing a large event as JSON. Throws when the call can never have so much. */
  const parseCost = (data: string): number => {
    const limit = { depthMax, membersMax: Number.POSITIVE_INFINITY, workMax: eventWorkMax };
    const { excess, textBytes, valueBytes } = measureJson(Buffer.from(data), limit);
    if (excess === 'work') throw faults().tooManyValues();
    if (excess !== null) throw faults().invalid(`sent an event that is nested more than ${depthMax} levels deep`);
    const freeBytes = memory === undefined ? Number.POSITIVE_INFINITY : memory.leaseBytesMax - memory.usedBytes;
    if (textBytes + valueBytes > freeBytes) throw faults().tooComplex(textBytes + valueBytes, freeBytes);
    return textBytes + valueBytes;
  };

  /** Counts the bytes of a large event that is not complete yet. */
  const holdPending = (bytes: number): void => {
    pendingBytes += bytes;
    const wanted = pendingBytes < countedBytesMin ? 0 : charCopies * pendingBytes;
    if (wanted === pendingHeld) return;
    if (wanted > pendingHeld) memory?.charge(wanted - pendingHeld);
    else memory?.give(pendingHeld - wanted);
    pendingHeld = wanted;
  };

  const read = (event: StreamEvent): void => {
    if (decoder) {
      const { payloads, done: last, error } = decoder.push(event);
      for (const payload of payloads) onPayload(payload);
      if (error) failWith(error);
      else if (last) finish();
    } else if (event.data === '[DONE]') finish();
    else if (event.event === 'error') failWith(translation.decodeError(200, event.data));
    else onPayload(event.data);
  };

  const framing =
    translation.openFraming?.(onEvent, limits.eventCharsMax) ??
    openSseFraming({
      onEvent,
      onComment: sign,
      eventCharsMax: limits.eventCharsMax,
      tooLarge: () => faults().tooLarge('an event', limits.eventCharsMax),
    });

  return {
    first: first.promise,
    data: (chunk) => {
      streamBytes += chunk.length;
      if (streamBytes > limits.streamBytesMax) throw faults().tooLarge('a stream', limits.streamBytesMax);
      holdPending(chunk.length);
      framing.push(chunk);
      holdPending(0);
      // Bytes alone do not keep a stream alive: one that completes no event is treated like silence.
      if (performance.now() - lastSignAt > idleMs) throw faults().idleTimeout(idleMs);
      flush();
    },
    end: () => {
      ending = true;
      try {
        framing.end();
      } catch {
        // The bytes are cut inside a character, which is handled below.
      }
      if (state === 'over') return;
      flush();
      if (meter.allFinished()) finish();
      else close(false, faults().truncated());
    },
    fail: (error) => {
      if (state === 'over') return;
      // Every choice was finished, so at most the closing usage is missing. Formats without a closing event (Gemini's)
      // end with the connection, which a provider can keep open.
      if (endsFinished.has(error.code) && meter.allFinished()) return close(true, null);
      close(false, error);
    },
  };
}

/** Bytes per token of English text with the usual tokenisers. */
const charsPerToken = 4;
/** An image or a recording in a body is one long text without a space. No word has this length. */
const mediaBytesMin = 4_096;
/** Tokens of an image of ordinary size at the large providers. */
const tokensPerMedia = 1_000;
/** Smaller bodies contain no media worth counting. In larger ones, at most this many texts are examined. */
const smallBytesMax = 16_384;
const textsMax = 10_000;

/**
 * Estimates the usage of a stream from the length of the request and the received text, for a stream whose provider did
 * not report it or that was cut off before.
 * @testOnly
 */
export const estimateStreamed = (sent: Buffer, chars: number): Usage => ({
  inputTokens: sentTokens(sent),
  cachedTokens: 0,
  outputTokens: Math.ceil(chars / charsPerToken),
  reasoningTokens: 0,
});

function sentTokens(sent: Buffer): number {
  let textBytes = sent.length;
  let media = 0;
  if (sent.length > smallBytesMax) {
    let from = 0;
    for (let texts = 0; texts < textsMax; texts += 1) {
      const quote = sent.indexOf(0x22, from);
      const end = quote === -1 ? sent.length : quote;
      if (end - from >= mediaBytesMin && !sent.subarray(from, from + mediaBytesMin).includes(0x20)) {
        media += 1;
        textBytes -= end - from;
      }
      if (quote === -1) break;
      from = quote + 1;
    }
  }
  return Math.ceil(textBytes / charsPerToken) + media * tokensPerMedia;
}
