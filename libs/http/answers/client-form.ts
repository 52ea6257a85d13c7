import type { IncomingMessage } from 'node:http';
import { toInvokeError } from '#libs/providers/bedrock/errors.ts';
import { encodeChunk, encodeException } from '#libs/providers/bedrock/framing.ts';
import { toGoogleError } from '#libs/providers/generate-content/google-error.ts';
import { messageErrorType } from '#libs/providers/messages/error-type.ts';
import { typeOfEvent } from '#libs/providers/messages/relay-messages.ts';
import { parseJson, toRecord } from '#libs/providers/turns/json-value.ts';

/** The members of an error, always all four (ERR-1). */
export type ErrorText = { message: string; type: string; param: string | null; code: string | null };

/** The part of a form that one stream uses. */
export type StreamForm = {
  readonly contentType: string;
  /** Sent while the source is silent, so that proxies keep the connection open; '' if the form has nothing for it. */
  readonly heartbeat: string;
  readonly write: (payloads: readonly string[]) => string | Uint8Array;
  /** The payload that ends a stream that broke off. */
  readonly failure: (status: number, error: ErrorText, requestId: string) => object;
  /** What follows the last payload. `isComplete`: it is not a failure. */
  readonly end: (isComplete: boolean) => string;
};

/** The form in which clients of a path expect errors and streams. */
export type ClientForm = {
  /** The name by which clients read the ID of the request, besides ours; null: none. */
  readonly idHeader: string | null;
  /** The status with which clients get an answer that has this one. */
  readonly toStatus: (status: number) => number;
  readonly toError: (status: number, error: ErrorText, requestId: string) => object;
  /** The schema of its errors in the document. */
  readonly errorSchema: ErrorSchema;
  readonly openStream: (request: IncomingMessage) => StreamForm;
};

export type ErrorSchema = 'Error' | 'AnthropicError' | 'GoogleError' | 'BedrockError';

const namedEvent = (payload: string): string => `event: ${typeOfEvent(payload)}\n`;

/**
 * One `data:` frame per payload, after the line that names its event if the form has one. A payload with line breaks becomes
 * several `data:` lines (WHATWG HTML 9.2.6).
 */
function toFrames(payloads: readonly string[], eventLine?: (payload: string) => string): string {
  let text = '';
  for (const payload of payloads) {
    if (eventLine !== undefined) text += eventLine(payload);
    const isOneLine = !payload.includes('\n') && !payload.includes('\r');
    text += `data: ${isOneLine ? payload : payload.split(/\r\n|\r|\n/).join('\ndata: ')}\n\n`;
  }
  return text;
}

/** Server-sent events. */
const events = {
  contentType: 'text/event-stream; charset=utf-8',
  heartbeat: ': keep-alive\n\n',
  write: (payloads: readonly string[]): string => toFrames(payloads),
  end: (): string => '',
};

/** OpenAI's errors, and the chunks of its completions. */
const chatForm: ClientForm = {
  idHeader: null,
  toStatus: (status) => status,
  toError: (_status, error) => ({ error }),
  errorSchema: 'Error',
  openStream: () => ({
    ...events,
    failure: (_status, error) => ({ error }),
    end: (isComplete) => (isComplete ? 'data: [DONE]\n\n' : ''),
  }),
};

/** An overloaded server answers 529 there, and clients wait before they try again. */
const messageStatus = (status: number): number => (status === 503 ? 529 : status);

/** The body of an error with this status in Anthropic's form, and our code, which its clients ignore. */
const toMessageError = (status: number, { message, code }: ErrorText, requestId: string): object => ({
  type: 'error',
  error: { type: messageErrorType(status), message, code },
  request_id: requestId,
});

const messagesForm: ClientForm = {
  idHeader: 'request-id',
  toStatus: messageStatus,
  toError: (status, error, requestId) => toMessageError(messageStatus(status), error, requestId),
  errorSchema: 'AnthropicError',
  openStream: () => ({
    ...events,
    write: (payloads) => toFrames(payloads, namedEvent),
    failure: (status, error, requestId) => toMessageError(messageStatus(status), error, requestId),
  }),
};

/** OpenAI's errors, and the events of its Responses API. */
const responsesForm: ClientForm = { ...chatForm, openStream: () => new ResponseStreamForm() };

/**
 * The codes by which clients of the Responses API, such as Codex, decide what to do. They repeat a request that failed with any
 * other code.
 */
const knownCodes: ReadonlySet<string | null> = new Set([
  'context_length_exceeded',
  'insufficient_quota',
  'invalid_prompt',
  'rate_limit_exceeded',
]);

/** A stream that broke off ends with a failed response, which has the ID and the model of the one that began. */
class ResponseStreamForm implements StreamForm {
  readonly contentType = events.contentType;
  readonly heartbeat = events.heartbeat;
  readonly end = events.end;
  #events = 0;
  #head: Readonly<Record<string, unknown>> = {};

  write = (payloads: readonly string[]): string => toFrames(payloads, this.#eventLine);

  #eventLine = (payload: string): string => {
    if (this.#events === 0) {
      const { id, object, created_at, model } = toRecord(toRecord(parseJson(payload))['response']);
      this.#head = { id, object, created_at, model };
    }
    this.#events += 1;
    return namedEvent(payload);
  };

  failure = (status: number, { message, code, type }: ErrorText): object => {
    const quota = status === 412 || type === 'insufficient_quota' ? 'insufficient_quota' : null;
    const known = knownCodes.has(code) ? code : (quota ?? (status === 429 ? 'rate_limit_exceeded' : 'server_error'));
    const error = { code: known, message, type: code ?? type };
    const ended = { status: 'failed', error, incomplete_details: null, output: [], usage: null };
    return { type: 'response.failed', sequence_number: this.#events, response: { ...this.#head, ...ended } };
  };
}

/** Google's errors, and its streams: server-sent events with `alt=sse`, otherwise a list of JSON objects. */
const googleForm: ClientForm = {
  ...chatForm,
  toError: toGoogleError,
  errorSchema: 'GoogleError',
  openStream: ({ url = '' }) => ({
    ...(/[?&]alt=sse(?:&|$)/.test(url) ? events : listFraming()),
    // Its clients fail at comments, but skip white space.
    heartbeat: '\n',
    failure: toGoogleError,
  }),
};

function listFraming(): Pick<StreamForm, 'contentType' | 'write' | 'end'> {
  let separator = '[';
  return {
    contentType: 'application/json; charset=utf-8',
    write: (payloads) => {
      let text = '';
      for (const payload of payloads) {
        text += separator + payload;
        separator = ',\r\n';
      }
      return text;
    },
    end: () => (separator === '[' ? '[]' : ']'),
  };
}

/** Errors of Bedrock, and its binary stream of Anthropic's events. */
const bedrockForm: ClientForm = {
  ...chatForm,
  idHeader: 'x-amzn-requestid',
  toError: toInvokeError,
  errorSchema: 'BedrockError',
  openStream: () => {
    let isBroken = false;
    return {
      contentType: 'application/vnd.amazon.eventstream',
      heartbeat: '',
      write: (payloads) => Buffer.concat(payloads.map(isBroken ? toExceptionFrame : encodeChunk)),
      failure: (status, error) => {
        isBroken = true;
        return toInvokeError(status, error);
      },
      end: () => '',
    };
  },
};

function toExceptionFrame(payload: string): Uint8Array {
  const { __type: name, message } = toRecord(parseJson(payload));
  return encodeException(String(name), String(message));
}

/** The forms of paths that begin like this. */
const forms: readonly (readonly [string, ClientForm])[] = [
  ['/v1/messages', messagesForm],
  ['/v1/responses', responsesForm],
  ['/v1beta', googleForm],
  ['/v1/publishers/anthropic', messagesForm],
  ['/model/', bedrockForm],
];

/** The form for this request, also before its route and caller are known. */
export const findClientForm = ({ url = '' }: Pick<IncomingMessage, 'url'>): ClientForm =>
  forms.find(([path]) => url.startsWith(path))?.[1] ?? chatForm;
