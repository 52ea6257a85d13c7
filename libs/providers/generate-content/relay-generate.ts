import { spliceMembers } from '#libs/kernel/json/json-members.ts';
import { decodeGoogleError } from '../gemini/errors.ts';
import { readGeminiDetails } from '../gemini/decode.ts';
import type { Call, OutboundRequest, StreamDecoder, Translation, Upstream } from '../provider.ts';
import { parseJson, toRecord } from '../turns/json-value.ts';
import { withoutForeignReasoning } from './foreign-reasoning.ts';

/** The method of an operation at the end of a path, with its query. */
type Method = 'generateContent' | 'streamGenerateContent?alt=sse' | 'countTokens';

type Send = (call: Call, upstream: Upstream, method: Method, body: Uint8Array) => OutboundRequest;

type More = Partial<Pick<Translation, 'serves' | 'decodeError'>>;

/**
 * generateContent at a provider that has Google's API itself. Request, answer, events and errors pass unchanged, with
 * signatures and with members that are unknown here. Only the reasoning of other providers is taken out.
 */
export const relayGenerate = (send: Send, more: More = {}): Translation => ({
  passThrough: true,
  encode: (call, upstream) => {
    const body = clientBody(call);
    const own = withoutForeignReasoning(body);
    const method = call.stream ? 'streamGenerateContent?alt=sse' : 'generateContent';
    const outbound = send(call, upstream, method, own ?? body);
    return own === null ? outbound : { ...outbound, dropped: ['reasoning'] };
  },
  detailsOf: (body) => readGeminiDetails(toRecord(body)),
  openStream: () => openGenerateStream(more.decodeError ?? decodeGoogleError),
  decodeError: decodeGoogleError,
  ...more,
});

/** countTokens at such a provider. What a config sets for answers has no place in such a request. */
export const relayCount = (send: Send, more: More = {}): Translation => ({
  passThrough: true,
  encode: (call, upstream) => send(call, upstream, 'countTokens', call.body),
  decodeError: decodeGoogleError,
  ...more,
});

const clientBody = ({ body, edits }: Call): Uint8Array =>
  Object.keys(edits).length === 0 ? body : spliceMembers(body, edits);

/** Only the end of the body marks the end of a stream. The core knows from its meter whether the answer has finished. */
function openGenerateStream(decodeError: Translation['decodeError']): StreamDecoder {
  return {
    push({ data }) {
      // Most events have no such text, and parsing one twice would cost as much as reading it.
      if (!data.includes('"error"')) return { payloads: [data] };
      const parsed = parseJson(data);
      const { error } = toRecord(Array.isArray(parsed) ? parsed[0] : parsed);
      if (error !== undefined && error !== null) return { payloads: [], error: decodeError(200, data) };
      return { payloads: [data] };
    },
  };
}
