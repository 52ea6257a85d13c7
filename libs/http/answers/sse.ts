import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { typeOfEvent } from '#libs/providers/messages/relay-messages.ts';
import { messageStatus, findClientForm, toClientError, type ClientForm } from './client-form.ts';
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
  const form = findClientForm(request);
  const framing = findFraming(form, request);
  response.setHeader('content-type', framing.contentType);
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
    if (!response.writableNeedDrain) response.write(framing.heartbeat);
  }, heartbeatMs);

  try {
    while (!response.destroyed) {
      const step = await nextBatch();
      if (step === null) break;
      if (step.done === true) {
        response.off('close', onClose);
        response.end(framing.end());
        return 'completed';
      }
      if (step.value.length === 0) continue;
      heartbeat.refresh();
      if (response.write(framing.write(step.value))) continue;
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
    const body = toErrorBody(error, requestId);
    const status = form === 'messages' ? messageStatus(httpStatus(error)) : httpStatus(error);
    const shown = toClientError(form, status, body, requestId);
    response.end(framing.fail(JSON.stringify(shown)));
    return 'failed';
  } finally {
    clearInterval(heartbeat);
    if (!response.writableEnded) {
      controller.abort(new Error('the client disconnected or stopped reading'));
      iterator.return?.().catch(() => {}); // This is the source's own end. There is no caller left to report it to.
    }
  }
}

/** How the payloads of one stream are written. */
type Framing = {
  contentType: string;
  /** What is sent when there is no event for long. */
  heartbeat: string;
  write: (payloads: readonly string[]) => string;
  /** What follows the last payload of a complete stream. */
  end: () => string;
  /** The last payload of a stream that broke off, and what follows it. */
  fail: (payload: string) => string;
};

function findFraming(form: ClientForm, { url = '' }: IncomingMessage): Framing {
  if (form === 'google') return /[?&]alt=sse(?:&|$)/.test(url) ? eventFraming(form) : listFraming();
  return eventFraming(form);
}

const eventFraming = (form: ClientForm): Framing => ({
  contentType: 'text/event-stream; charset=utf-8',
  // Clients of Google fail at comments, but skip white space.
  heartbeat: form === 'google' ? '\n' : ': keep-alive\n\n',
  write: (payloads) => toFrames(payloads, form),
  end: () => (form === 'chat' ? 'data: [DONE]\n\n' : ''),
  fail: (payload) => toFrames([payload], form),
});

/** A list of JSON objects, one for each payload, as Google answers without `alt=sse`. */
function listFraming(): Framing {
  let separator = '[';
  const write = (payloads: readonly string[]): string => {
    let text = '';
    for (const payload of payloads) {
      text += separator + payload;
      separator = ',\r\n';
    }
    return text;
  };
  return {
    contentType: 'application/json; charset=utf-8',
    heartbeat: '\n',
    write,
    end: () => (separator === '[' ? '[]' : ']'),
    fail: (payload) => `${write([payload])}]`,
  };
}

/**
 * One `data:` frame per payload; in Anthropic's form, its event is named by its type. A payload with line breaks becomes
 * several `data:` lines (WHATWG HTML 9.2.6).
 */
function toFrames(payloads: readonly string[], form: ClientForm): string {
  let text = '';
  for (const payload of payloads) {
    if (form === 'messages') text += `event: ${typeOfEvent(payload)}\n`;
    const isOneLine = !payload.includes('\n') && !payload.includes('\r');
    text += `data: ${isOneLine ? payload : payload.split(/\r\n|\r|\n/).join('\ndata: ')}\n\n`;
  }
  return text;
}
