import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { findClientForm, type StreamForm } from './client-form.ts';
import { httpStatus, toErrorBody } from './error-response.ts';
import { getContext } from '../request-context.ts';
import { drained, stallTimeoutMsDefault } from './send-pieces.ts';

export type EventStreamOptions = {
  /** Aborted when the client disconnects or stalls, so that the source of `events`, which listens to its signal, stops. */
  controller: Pick<AbortController, 'abort'>;
  logger: Logger;
  /** Default 200. */
  status?: number;
  /** A comment is sent after this long without an event, because proxies and fetch cut silent connections. */
  heartbeatMs?: number;
  /** A client that does not catch up in this time is disconnected. Until it catches up, the source is not read. */
  stallTimeoutMs?: number;
};

/**
 * `completed`: all events and `[DONE]` were written. `failed`: the source failed, and an error event was sent.
 * `disconnected`, `stalled`: the client disconnected, or stopped reading.
 */
export type EventStreamOutcome = 'completed' | 'failed' | 'disconnected' | 'stalled';

const heartbeatMsDefault = 15_000;

/**
 * Answers with a stream in the form of its client, mostly server-sent events. Each batch of payloads is one write, sent
 * immediately. After the source ends, the form's end is sent (`[DONE]` in OpenAI's). If the source throws, an error payload is
 * sent and no `[DONE]`, because SDKs regard a stream that simply ends as complete. Never throws because of the source or the client.
 */
export async function sendEventStream(
  request: IncomingMessage,
  response: ServerResponse,
  events: AsyncIterable<readonly string[]>,
  options: EventStreamOptions,
): Promise<EventStreamOutcome> {
  response.statusCode = options.status ?? 200;
  const form = findClientForm(request).openStream(request);
  response.setHeader('content-type', form.contentType);
  response.setHeader('cache-control', 'no-cache');
  response.setHeader('x-accel-buffering', 'no');
  response.flushHeaders();

  return await new StreamWriter({ request, response, iterator: events[Symbol.asyncIterator](), form, options }).run();
}

type Step = IteratorResult<readonly string[]>;

type Stream = {
  request: IncomingMessage;
  response: ServerResponse;
  iterator: AsyncIterator<readonly string[]>;
  form: StreamForm;
  options: EventStreamOptions;
};

/**
 * Reads a source and writes its events. It is driven by callbacks, not by a loop that awaits: awaiting the next batch or
 * the end of the client, whichever comes first, took half a kilobyte of promises and closures for each event.
 */
class StreamWriter {
  readonly #stream: Stream;
  readonly #outcome = Promise.withResolvers<EventStreamOutcome>();
  readonly #heartbeat: NodeJS.Timeout;
  // After the client has left, the source could be stuck, so its next batch is not awaited.
  #isOver = false;

  constructor(stream: Stream) {
    this.#stream = stream;
    const { response, form, options } = stream;
    this.#heartbeat = setInterval(() => {
      if (form.heartbeat !== '' && !response.writableNeedDrain) response.write(form.heartbeat);
    }, options.heartbeatMs ?? heartbeatMsDefault);
  }

  async run(): Promise<EventStreamOutcome> {
    const { response } = this.#stream;
    response.once('close', this.#onClose);
    response.on('error', () => {}); // 'close' follows and is handled.
    if (response.destroyed) this.#leave('disconnected');
    else this.#next();
    return await this.#outcome.promise;
  }

  #next(): void {
    this.#stream.iterator.next().then(this.#onStep, this.#onError);
  }

  readonly #onStep = (step: Step): void => {
    if (this.#isOver) return;
    try {
      this.#take(step);
    } catch (error) {
      this.#onError(error);
    }
  };

  #take(step: Step): void {
    const { response, form } = this.#stream;
    if (step.done === true) return this.#end(form.end(true), 'completed');
    if (step.value.length > 0) {
      this.#heartbeat.refresh();
      if (!response.write(form.write(step.value))) return void this.#nextWhenDrained();
    }
    this.#next();
  }

  async #nextWhenDrained(): Promise<void> {
    const { response, options } = this.#stream;
    const isDrained = await drained(response, options.stallTimeoutMs ?? stallTimeoutMsDefault);
    if (this.#isOver) return;
    if (isDrained) return this.#next();
    this.#leave('stalled');
    response.destroy();
  }

  readonly #onError = (error: unknown): void => {
    if (this.#isOver) return;
    try {
      this.#fail(error);
    } catch (bug) {
      this.#outcome.reject(bug);
      this.#leave('disconnected');
    }
  };

  #fail(error: unknown): void {
    const { request, response, form, options } = this.#stream;
    if (response.destroyed) return this.#leave('disconnected');
    const { requestId, traceId } = getContext(request);
    if (httpStatus(error) === 500) {
      options.logger.error({ err: error, request_id: requestId, trace_id: traceId }, 'stream failed');
    }
    const failure = form.failure(httpStatus(error), toErrorBody(error, requestId).error, requestId);
    response.write(form.write([JSON.stringify(failure)]));
    this.#end(form.end(false), 'failed');
  }

  readonly #onClose = (): void => this.#leave('disconnected');

  /** The client gets no more. */
  #leave(outcome: EventStreamOutcome): void {
    const { iterator, options } = this.#stream;
    this.#finish(outcome);
    options.controller.abort(new Error('the client disconnected or stopped reading'));
    iterator.return?.().catch(() => {}); // The client that an error could be sent to has left.
  }

  /** `text`: what follows the last event. */
  #end(text: string, outcome: EventStreamOutcome): void {
    this.#finish(outcome);
    this.#stream.response.end(text);
  }

  #finish(outcome: EventStreamOutcome): void {
    this.#isOver = true;
    clearInterval(this.#heartbeat);
    this.#stream.response.off('close', this.#onClose);
    this.#outcome.resolve(outcome);
  }
}
