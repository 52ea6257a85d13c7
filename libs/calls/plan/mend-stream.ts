import type { ForwardRequest, Outcome, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { asGatewayError, type GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import { findDialect } from '#libs/providers/dialects.ts';
import type { Operation } from '#libs/providers/provider.ts';
import { mostShown, type BrokenStreams, type Shown, type StreamJoin } from '#libs/providers/turns/stream-join.ts';

/** The longest stream, in characters, that can be followed by another one: what was sent is kept until then. */
const keptCharsMax = 4_194_304;
/** The largest request that is parsed to be continued. */
const requestBytesMax = 1_048_576;
/** A text takes two bytes per character if one of its characters is wide. */
const charBytes = 2;

export type Mending = {
  request: ForwardRequest;
  /** Whether a stream that breaks off in its text is continued, too. */
  continues: boolean;
  /**
   * Calls the next target after a stream broke off with `error`, with `edits` to its request. Returns its outcome; null if
   * there is none to call.
   */
  callNext: (broken: StreamAnswer, error: GatewayError, edits: MemberEdits) => Promise<Outcome | null>;
};

/**
 * Returns a stream that the next target continues when it breaks off. That is possible as long as its client has seen
 * nothing but reasoning; with `continues`, also after text, which the next target gets as the beginning of its answer. Otherwise,
 * the stream ends with its error. Returns `first` if its operation has no streams that can be joined.
 */
export function mendStream(first: StreamAnswer, mending: Mending): StreamAnswer {
  const dialect = findDialect(mending.request.operation as Operation);
  return dialect.operation === mending.request.operation
    ? new MendedStream(first, mending, dialect.brokenStreams)
    : first;
}

class MendedStream implements StreamAnswer {
  readonly kind = 'stream';
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly usage = null;
  readonly model = null;
  readonly finishReason = null;
  readonly events: AsyncIterable<readonly string[]>;
  readonly done: Promise<StreamSummary>;
  readonly #mending: Mending;
  readonly #dialect: BrokenStreams;
  readonly #sent: SentPayloads;
  readonly #done = Promise.withResolvers<StreamSummary>();
  /** The stream that is sent now, and the outcome that the record describes: a failure if the last target had no answer. */
  #current: StreamAnswer;
  #last: Outcome;
  /** Whether the usage of a stream that broke off was estimated. */
  #isEstimate = false;

  constructor(first: StreamAnswer, mending: Mending, dialect: BrokenStreams) {
    this.status = first.status;
    this.headers = first.headers;
    this.#mending = mending;
    this.#dialect = dialect;
    this.#sent = new SentPayloads(dialect, mending.continues, mending.request.memory);
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
        // A generator that has not begun would not cancel the call to the provider.
        if (!hasBegun) await this.#current.events[Symbol.asyncIterator]().return?.();
        if (!hasBegun) this.#end();
        return payloads.return(undefined);
      },
    };
  }

  async *#payloads(): AsyncGenerator<readonly string[], undefined> {
    let join: StreamJoin | null = null;
    try {
      for (;;) {
        try {
          for await (const batch of this.#current.events) {
            const payloads: readonly string[] = join === null ? batch : batch.flatMap(join.push);
            this.#sent.add(payloads);
            if (payloads.length > 0) yield payloads;
          }
          return undefined;
        } catch (error) {
          const next = await this.#callNext(asGatewayError(error));
          if (next === null) throw error;
          this.#current = next;
          join = this.#dialect.join(this.#sent.payloads());
          this.#sent.add(join.ends);
          if (join.ends.length > 0) yield join.ends;
        }
      }
    } finally {
      this.#sent.drop();
      this.#end();
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
      // The provider has worked for it.
      if (usage !== null) attempt.paid = { responseModel: model, usage };
      this.#isEstimate ||= isEstimate;
    }
    const outcome = await this.#mending.callNext(broken, error, edits);
    if (outcome === null) return null;
    this.#last = outcome;
    return outcome.kind === 'stream' ? outcome : null;
  }

  /** null: what the client has seen cannot be continued. */
  #editsForRest(): MemberEdits | null {
    const { request, continues } = this.#mending;
    const seen = this.#sent.read();
    if (seen === null || seen.shown === 'other') return null;
    if (seen.shown !== 'text') return {};
    if (!continues || request.body.length > requestBytesMax) return null;
    const body = request.parsed ?? (JSON.parse(request.body.toString()) as Record<string, unknown>);
    const members = Object.entries(this.#dialect.askForRest(body, seen.text));
    return Object.fromEntries(members.map(([name, value]) => [name, JSON.stringify(value)]));
  }

  #end(): void {
    const mark = this.#isEstimate ? { isEstimate: true } : {};
    void this.#current.done.then((summary) => this.#done.resolve({ ...summary, ...mark }));
  }
}

/** What was sent to the client, as long as another stream could follow it. */
class SentPayloads {
  readonly #dialect: BrokenStreams;
  readonly #continues: boolean;
  readonly #memory: MemoryLease | undefined;
  /** null: no other stream can follow. */
  #payloads: string[] | null = [];
  #chars = 0;
  #heldBytes = 0;

  constructor(dialect: BrokenStreams, continues: boolean, memory: MemoryLease | undefined) {
    this.#dialect = dialect;
    this.#continues = continues;
    this.#memory = memory;
  }

  add(payloads: readonly string[]): void {
    if (this.#payloads === null) return;
    const chars = payloads.reduce((sum, payload) => sum + payload.length, 0);
    this.#chars += chars;
    const isShown = !this.#continues && payloads.some((payload) => isContent(this.#dialect.readShown(payload).shown));
    if (isShown || this.#chars > keptCharsMax || this.#memory?.tryCharge(charBytes * chars) === false)
      return this.drop();
    this.#heldBytes += charBytes * chars;
    this.#payloads.push(...payloads);
  }

  payloads(): readonly string[] {
    return this.#payloads ?? [];
  }

  /** What the client has seen; null if it is not known any more. */
  read(): { shown: Shown; text: string } | null {
    if (this.#payloads === null) return null;
    const all = this.#payloads.map((payload) => this.#dialect.readShown(payload));
    return { shown: mostShown(...all.map(({ shown }) => shown)), text: all.map(({ text }) => text).join('') };
  }

  drop(): void {
    this.#payloads = null;
    this.#memory?.give(this.#heldBytes);
    this.#heldBytes = 0;
  }
}

const isContent = (shown: Shown): boolean => shown === 'text' || shown === 'other';
