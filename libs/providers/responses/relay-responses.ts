import { decodeOpenAiError } from '../openai-error.ts';
import { typeOfEvent } from '../messages/relay-messages.ts';
import type { Call, ProviderError, StreamDecoder, StreamEvent, Translation } from '../provider.ts';
import { parseJson, toRecord } from '../turns/json-value.ts';
import { withoutForeignReasoning } from './reasoning.ts';

/**
 * Responses from a provider that has the API itself. Request, answer and events pass unchanged, because clients depend on
 * items and tools that are added all the time. Only the reasoning of other providers is taken out.
 */
export const relayResponses = (encode: Translation['encode']): Translation => ({
  passThrough: true,
  encode(call, upstream) {
    const own = withoutForeignReasoning(call);
    return own === null ? encode(call, upstream) : { ...encode(own, upstream), dropped: ['reasoning'] };
  },
  openStream: openResponseStream,
  decodeError: decodeResponseError,
});

/** The events that end a stream. */
const lastEvents = new Set(['response.completed', 'response.incomplete']);

function openResponseStream(_call: Call): StreamDecoder {
  return {
    push({ data }: StreamEvent) {
      if (data === '[DONE]') return { payloads: [], done: true };
      const type = typeOfEvent(data);
      if (type === 'error' || type === 'response.failed')
        return { payloads: [], error: decodeResponseError(200, data) };
      return { payloads: [data], done: lastEvents.has(type) };
    },
  };
}

/** The status that an error would have had before the stream began. */
const statuses: Readonly<Record<string, number>> = {
  rate_limit_exceeded: 429,
  insufficient_quota: 429,
  context_length_exceeded: 400,
  invalid_prompt: 400,
};

/** Reads the error in a response or in an event (`response.failed`, `error`), or any other error of such a server. */
function decodeResponseError(status: number, body: string): ProviderError {
  const parsed = toRecord(parseJson(body));
  const failed = toRecord(toRecord(parsed['response'])['error']);
  const { type: _event, ...members } = parsed;
  const source = parsed['type'] === 'response.failed' ? { error: failed } : parsed['type'] === 'error' ? members : null;
  const read = decodeOpenAiError(status, source === null ? body : JSON.stringify(source));
  const own = status >= 400 ? undefined : statuses[read.error.code ?? ''];
  return own === undefined ? read : { ...read, status: own };
}
