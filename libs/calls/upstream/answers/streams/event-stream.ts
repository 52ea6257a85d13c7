import type { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type {
  Call,
  Framing,
  Operation,
  ProviderError,
  StreamDecoder,
  StreamEvent,
  Translation,
} from '#libs/providers/provider.ts';
import type { Limits, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import type { Flow } from '../../egress/exchange.ts';
import { createPayloadQueue, type PayloadQueue } from '../../egress/payload-queue.ts';
import { estimateStreamed } from '../estimate-usage.ts';
import { EventMemory } from './event-memory.ts';
import { plausibleUsage, type UsedBy } from '../plausible-usage.ts';
import type { Faults } from '../../provider-faults.ts';
import { GenerateMeter } from './generate-meter.ts';
import { MessageMeter } from './message-meter.ts';
import { ResponseMeter } from './response-meter.ts';
import { openSseFraming } from './sse-framing.ts';
import { createStreamMeter, type StreamMeter } from './stream-meter.ts';

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

/** The meters of operations whose events are not chunks of completions. */
const meters: Readonly<Partial<Record<Operation, () => StreamMeter>>> = {
  messages: () => new MessageMeter(),
  responses: () => new ResponseMeter(),
  generate_content: () => new GenerateMeter(),
};

/** The errors with which a complete stream can end. */
const endsFinished: ReadonlySet<string | null> = new Set(['upstream_truncated', 'upstream_idle_timeout']);

/** Content that is not counted as text, such as an image, does not wait. */
const heldCharsMax = 16_384;

/** The kind of the first event: content, or an error before the client has received a byte. */
type FirstEvent =
  | { kind: 'content'; answer: Pick<StreamAnswer, 'events' | 'done'> }
  | { kind: 'error'; error: ProviderError };

/**
 * Reads one provider stream: splits it into events, lets the adapter translate them, meters a copy, and passes the
 * payload texts on with back-pressure. An end without `[DONE]` is only accepted when every choice was finished;
 * otherwise the stream is `upstream_truncated`.
 */
export class EventStream {
  readonly #options: Options;
  readonly #decoder: StreamDecoder | undefined;
  readonly #framing: Framing;
  readonly #queue: PayloadQueue;
  readonly #memory: EventMemory;
  readonly #meter: StreamMeter;
  readonly #first = Promise.withResolvers<FirstEvent>();
  readonly #done = Promise.withResolvers<StreamSummary>();
  #batch: string[] = [];
  #holding: NodeJS.Timeout | undefined;
  #streamBytes = 0;
  #firstEventMs = 0;
  #lastSignAt = performance.now();
  #state: 'peeking' | 'flowing' | 'over' = 'peeking';
  #isEnding = false;

  constructor(options: Options) {
    const { call, translation, flow, faults, memory, limits } = options;
    this.#options = options;
    this.#decoder = translation.openStream?.(call);
    this.#meter = meters[call.operation]?.() ?? createStreamMeter();
    this.#memory = new EventMemory(memory, faults);
    this.#queue = createPayloadQueue({
      memory,
      charsMax: limits.bufferedCharsMax,
      onFull: () => flow.pause(),
      onDrained: () => {
        this.#recordSign(); // This process caused the silence.
        flow.resume();
      },
      onLeft: () => flow.abort(faults().callerLeft()),
    });
    const onEvent = (event: StreamEvent): void => this.#onEvent(event);
    this.#framing =
      translation.openFraming?.(onEvent, limits.eventCharsMax) ??
      openSseFraming({
        onEvent,
        onComment: () => this.#recordSign(),
        eventCharsMax: limits.eventCharsMax,
        tooLarge: () => faults().tooLarge('an event', limits.eventCharsMax),
      });
  }

  /** Rejects with a GatewayError when the stream ends or breaks off before its first content. */
  get first(): Promise<FirstEvent> {
    return this.#first.promise;
  }

  data(chunk: Buffer): void {
    const { limits, faults, idleMs } = this.#options;
    this.#streamBytes += chunk.length;
    if (this.#streamBytes > limits.streamBytesMax) throw faults().tooLarge('a stream', limits.streamBytesMax);
    this.#memory.holdPending(chunk.length);
    this.#framing.push(chunk);
    this.#memory.holdPending(0);
    // Bytes alone do not keep a stream alive: one that completes no event is treated like silence.
    if (performance.now() - this.#lastSignAt > idleMs) throw faults().idleTimeout(idleMs);
    this.#flush();
  }

  end(): void {
    this.#isEnding = true;
    try {
      this.#framing.end();
    } catch {
      // The bytes are cut inside a character, which is handled below.
    }
    if (this.#state === 'over') return;
    this.#writeEnd();
    this.#flush();
    if (this.#meter.allFinished()) this.#finish();
    else this.#close(false, this.#options.faults().truncated());
  }

  fail(error: GatewayError): void {
    if (this.#state === 'over') return;
    // Every choice was finished, so at most the closing usage is missing. Formats without a closing event (Gemini's)
    // end with the connection, which a provider can keep open. If the caller left after the usage, the cost is known.
    if (endsFinished.has(error.code)) this.#writeEnd();
    const isWhole = endsFinished.has(error.code) || (error.code === 'call_aborted' && this.#meter.usage() !== null);
    if (isWhole && this.#meter.allFinished()) return this.#close(true, null);
    this.#close(false, error);
  }

  #recordSign(): void {
    this.#lastSignAt = performance.now();
  }

  #onEvent(event: StreamEvent): void {
    this.#recordSign();
    this.#memory.eventCompleted();
    if (this.#state === 'over') return;
    const parseBytes = this.#memory.chargeParsing(event.data);
    try {
      this.#read(event);
    } finally {
      this.#memory.give(parseBytes);
    }
  }

  #read(event: StreamEvent): void {
    if (this.#decoder) {
      const { payloads, done: last, error } = this.#decoder.push(event);
      for (const payload of payloads) this.#onPayload(payload);
      if (error) return this.#failWith(error);
      if (!last) return;
      this.#writeEnd();
      this.#finish();
    } else if (event.data === '[DONE]') this.#finish();
    else if (event.event === 'error') this.#failWith(this.#options.translation.decodeError(200, event.data));
    else this.#onPayload(event.data);
  }

  /** Writes what follows the last event, if the answer has finished. */
  #writeEnd(): void {
    for (const payload of this.#decoder?.end?.() ?? []) this.#onPayload(payload);
  }

  #onPayload(payload: string): void {
    if (this.#state === 'over') return;
    const { call, translation, faults } = this.#options;
    const view = this.#meter.read(payload);
    if (view === 'error') return this.#failWith(translation.decodeError(200, payload));
    if (view === 'unreadable') {
      if (this.#isEnding) return; // The stream was cut off inside an event and counts as truncated.
      throw faults().invalid('sent an event that is not a JSON object', payload);
    }
    if (view === 'chunk' || call.includeUsage) this.#batch.push(payload);
  }

  /** Passes the events on, unless they are the first ones and have no content yet. */
  #flush(): void {
    if (this.#batch.length === 0) return;
    if (this.#state !== 'peeking' || this.#hasContent()) return this.#open();
    if (this.#holding !== undefined) return;
    const { flow, limits } = this.#options;
    flow.answered();
    this.#holding = setTimeout(() => this.#open(), limits.heldMs).unref();
  }

  #hasContent(): boolean {
    if (this.#meter.chars() > 0 || this.#meter.finishReason() !== null) return true;
    return this.#batch.reduce((sum, payload) => sum + payload.length, 0) > heldCharsMax;
  }

  #open(): void {
    const payloads = this.#batch;
    this.#batch = [];
    this.#queue.push(payloads);
    if (this.#state !== 'peeking') return;
    this.#state = 'flowing';
    clearTimeout(this.#holding);
    this.#firstEventMs = performance.now() - this.#options.startedAt;
    this.#first.resolve({ kind: 'content', answer: { events: this.#queue.payloads, done: this.#done.promise } });
  }

  #finish(): void {
    const { call, flow, faults } = this.#options;
    const usageChunk = call.includeUsage ? this.#meter.missingUsageChunk() : null;
    if (usageChunk !== null) this.#batch.push(usageChunk);
    flow.finish();
    if (this.#batch.length > 0) this.#open();
    if (this.#state === 'peeking') this.#close(false, faults().invalid('returned a stream without any content'));
    else this.#close(true, null);
  }

  #failWith(error: ProviderError): void {
    const { flow, faults } = this.#options;
    this.#flush();
    if (this.#state === 'peeking') {
      this.#end();
      flow.finish();
      this.#first.resolve({ kind: 'error', error });
      return;
    }
    const fault = faults().streamError(error);
    this.#close(false, fault);
    flow.abort(fault);
  }

  #close(complete: boolean, error: GatewayError | null): void {
    this.#memory.dropPending();
    if (complete && this.#batch.length > 0) this.#open();
    else this.#flush();
    const peeking = this.#state === 'peeking';
    this.#end();
    if (error) this.#queue.fail(error);
    else this.#queue.end();
    if (peeking && error) this.#first.reject(error);
    this.#done.resolve(this.#summary(complete, error));
  }

  #end(): void {
    this.#state = 'over';
    clearTimeout(this.#holding);
  }

  #summary(complete: boolean, error: GatewayError | null): StreamSummary {
    const { call, usedBy } = this.#options;
    const meter = this.#meter;
    const counted = meter.usage();
    const details = counted === null ? null : this.#decoder?.details?.();
    if (counted !== null && details) Object.assign(counted, details);
    return {
      usage: counted === null ? estimateStreamed(call.body, meter.chars()) : plausibleUsage(counted, usedBy),
      ...(counted === null ? { isEstimate: true } : {}),
      model: meter.model(),
      finishReason: meter.finishReason(),
      complete,
      firstEventMs: this.#firstEventMs,
      error,
    };
  }
}
