import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { findClientForm } from './client-form.ts';
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
  const { controller, heartbeatMs = heartbeatMsDefault, stallTimeoutMs = stallTimeoutMsDefault } = options;
  response.statusCode = options.status ?? 200;
  const form = findClientForm(request).openStream(request);
  response.setHeader('content-type', form.contentType);
  response.setHeader('cache-control', 'no-cache');
  response.setHeader('x-accel-buffering', 'no');
  response.flushHeaders();

  const iterator = events[Symbol.asyncIterator]();
  let interrupt: (() => void) | null = null;
  const onClose = (): void => {
    controller.abort(new Error('the client left'));
    interrupt?.();
  };
  response.once('close', onClose);
  response.on('error', () => {}); // 'close' follows and is handled.
  // After an interruption, the source could be stuck, so it is not read again.
  const nextBatch = (): Promise<IteratorResult<readonly string[]> | null> =>
    new Promise((resolve, reject) => {
      interrupt = () => resolve(null);
      iterator.next().then(resolve, reject);
    });
  const heartbeat = setInterval(() => {
    if (form.heartbeat !== '' && !response.writableNeedDrain) response.write(form.heartbeat);
  }, heartbeatMs);

  try {
    while (!response.destroyed) {
      const step = await nextBatch();
      if (step === null) break;
      if (step.done === true) {
        response.off('close', onClose);
        response.end(form.end(true));
        return 'completed';
      }
      if (step.value.length === 0) continue;
      heartbeat.refresh();
      if (response.write(form.write(step.value))) continue;
      if (!(await drained(response, stallTimeoutMs))) break;
    }
    if (response.destroyed) return 'disconnected';
    response.destroy();
    return 'stalled';
  } catch (error) {
    if (response.destroyed) return 'disconnected';
    const { requestId, traceId } = getContext(request);
    if (httpStatus(error) === 500) {
      options.logger.error({ err: error, request_id: requestId, trace_id: traceId }, 'stream failed');
    }
    response.off('close', onClose);
    const failure = form.failure(httpStatus(error), toErrorBody(error, requestId).error, requestId);
    response.write(form.write([JSON.stringify(failure)]));
    response.end(form.end(false));
    return 'failed';
  } finally {
    clearInterval(heartbeat);
    if (!response.writableEnded) {
      controller.abort(new Error('the client disconnected or stopped reading'));
      iterator.return?.().catch(() => {}); // This is the source's own end. There is no caller left to report it to.
    }
  }
}
