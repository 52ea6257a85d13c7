import type { ForwardRequest, Outcome, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { asGatewayError, type GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import { findDialect } from '#libs/providers/dialects.ts';
import type { Dialect, Operation } from '#libs/providers/provider.ts';
import type { StreamJoiner } from '#libs/providers/turns/stream-joiner.ts';

/** The longest text, in characters, that another target can continue. */
const textCharsMax = 1_048_576;
/** The largest request that is parsed to ask for the rest of its answer. */
const requestBytesMax = 1_048_576;
/** A text takes two bytes per character if one of its characters is wide. */
const charBytes = 2;

export type Recovery = {
  request: ForwardRequest;
  /** The edits to the request with which an earlier stream was continued. */
  edits: MemberEdits;
  /** Whether a stream that breaks off in its text is continued, too. */
  continuesText: boolean;
  /**
   * Calls the next target with `edits` to the request, after a stream broke off with `error`. Returns null if there is no
   * target to call.
   */
  callNext: (broken: StreamAnswer, error: GatewayError, edits: MemberEdits) => Promise<Outcome | null>;
};

/**
 * Returns a stream that the next target continues when it breaks off. That is possible as long as the client has seen
 * nothing but reasoning. With `continuesText`, it is also possible after text: the next target gets the text and is asked for
 * the rest. Otherwise, the stream ends with its error. Returns `first` if its operation has no dialect.
 */
export function recoverStream(first: StreamAnswer, recovery: Recovery): StreamAnswer {
  const dialect = findDialect(recovery.request.operation as Operation);
  return dialect.operation === recovery.request.operation ? new RecoveredStream(first, recovery, dialect) : first;
}

class RecoveredStream implements StreamAnswer {
  readonly kind = 'stream';
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly usage = null;
  readonly model = null;
  readonly finishReason = null;
  readonly events: AsyncIterable<readonly string[]>;
  readonly done: Promise<StreamSummary>;
  readonly #recovery: Recovery;
  readonly #dialect: Dialect;
  readonly #joiner: StreamJoiner;
  readonly #done = Promise.withResolvers<StreamSummary>();
  /** The stream that is sent now, and the outcome that the record describes: a failure if the last target had no answer. */
  #current: StreamAnswer;
  #last: Outcome;
  /** Whether another target could still continue the stream. */
  #canContinue = true;
  #retainedChars = 0;
  /** Whether the usage of a stream that broke off was estimated. */
  #isEstimate = false;

  constructor(first: StreamAnswer, recovery: Recovery, dialect: Dialect) {
    this.status = first.status;
    this.headers = first.headers;
    this.#recovery = recovery;
    this.#dialect = dialect;
    this.#joiner = dialect.openJoiner();
    this.#current = first;
    this.#last = first;
    this.done = this.#done.promise;
    this.events = { [Symbol.asyncIterator]: () => this.#iterate() };
  }

  get attempts(): StreamAnswer['attempts'] {
    return this.#last.attempts;
  }

  get providerRequestId(): string | null {
    return this.#current.providerRequestId;
  }

  #iterate(): AsyncIterator<readonly string[]> {
    const payloads = this.#payloads();
    let hasBegun = false;
    return {
      next: () => {
        hasBegun = true;
        return payloads.next();
      },
      return: async () => {
        if (!hasBegun) {
          // A generator that has not begun would not cancel the call to the provider.
          await this.#current.events[Symbol.asyncIterator]().return?.();
          this.#end();
        }
        return payloads.return(undefined);
      },
    };
  }

  async *#payloads(): AsyncGenerator<readonly string[], undefined> {
    let isFirst = true;
    try {
      for (;;) {
        try {
          for await (const batch of this.#current.events) {
            const payloads = isFirst ? batch : this.#rewrite(batch);
            this.#track(payloads);
            if (payloads.length > 0) yield payloads;
          }
          return undefined;
        } catch (error) {
          const next = await this.#callNext(asGatewayError(error));
          if (next === null) throw error;
          this.#current = next;
          isFirst = false;
          const ends = this.#joiner.startNext();
          if (ends.length > 0) yield ends;
        }
      }
    } finally {
      this.#end();
    }
  }

  #rewrite(batch: readonly string[]): readonly string[] {
    return batch.flatMap((payload) => this.#joiner.rewrite(payload) ?? []);
  }

  /** Reads what is sent, as long as another target could continue it. */
  #track(payloads: readonly string[]): void {
    const { continuesText, request } = this.#recovery;
    for (const payload of payloads) {
      if (!this.#canContinue) return;
      if (request.memory?.tryCharge(charBytes * payload.length) === false) {
        this.#canContinue = false;
        return;
      }
      const retained = this.#joiner.read(payload);
      this.#retainedChars += retained;
      request.memory?.give(charBytes * (payload.length - retained));
      const { shown } = this.#joiner;
      const isContinuable = shown !== 'other' && (shown !== 'text' || continuesText);
      this.#canContinue = isContinuable && this.#retainedChars <= textCharsMax;
    }
  }

  async #callNext(error: GatewayError): Promise<StreamAnswer | null> {
    const edits = this.#editsForRest();
    if (edits === null) return null;
    const broken = this.#current;
    const { usage, model, isEstimate = false } = await broken.done;
    const attempt = broken.attempts.at(-1);
    if (attempt !== undefined) {
      attempt.errorCode = error.code;
      attempt.durationMs = Date.now() - attempt.startedAt;
      if (usage !== null) attempt.paid = { responseModel: model, usage };
      this.#isEstimate ||= isEstimate;
    }
    const outcome = await this.#recovery.callNext(broken, error, edits);
    if (outcome === null) return null;
    this.#last = outcome;
    return outcome.kind === 'stream' ? outcome : null;
  }

  /** null: the stream cannot be continued. */
  #editsForRest(): MemberEdits | null {
    const { request, edits } = this.#recovery;
    if (!this.#canContinue) return null;
    if (this.#joiner.shown !== 'text') return edits;
    if (request.body.length > requestBytesMax) return null;
    const parsed = request.parsed ?? (JSON.parse(request.body.toString()) as Readonly<Record<string, unknown>>);
    const edited = Object.entries(edits).map(([name, raw]) => [name, JSON.parse(raw ?? 'null') as unknown] as const);
    const rest = this.#dialect.askForRest({ ...parsed, ...Object.fromEntries(edited) }, this.#joiner.text);
    return Object.fromEntries(Object.entries(rest).map(([name, value]) => [name, JSON.stringify(value)]));
  }

  #end(): void {
    this.#canContinue = false;
    this.#recovery.request.memory?.give(charBytes * this.#retainedChars);
    this.#retainedChars = 0;
    const mark = this.#isEstimate ? { isEstimate: true } : {};
    void this.#current.done.then((summary) => this.#done.resolve({ ...summary, ...mark }));
  }
}
