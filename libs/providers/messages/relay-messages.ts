import { spliceMembers } from '#libs/kernel/json/json-members.ts';
import { decodeAnthropicError } from '../anthropic/errors.ts';
import { toRecord, parseJson } from '../chat/json-value.ts';
import type { Call, StreamDecoder, StreamEvent, Translation } from '../provider.ts';

/**
 * Messages to a provider that has Anthropic's API itself. Request, answer, events and errors pass unchanged, because
 * clients depend on their order, on members that nobody else knows, on signatures, and on the wording of errors.
 */
export const relayMessages = (encode: Translation['encode']): Translation => ({
  passThrough: true,
  encode,
  openStream: openMessageStream,
  decodeError: decodeAnthropicError,
});

/** The client's bytes, with the model of the target and what the config changes. */
export const messageBody = ({ body, edits }: Call): Uint8Array =>
  Object.keys(edits).length === 0 ? body : spliceMembers(body, edits);

/** The type of an event. It is the first member of what Anthropic sends. */
export function typeOfEvent(data: string): string {
  const found = /^\s*\{\s*"type"\s*:\s*"(\w+)"/.exec(data)?.[1];
  if (found !== undefined) return found;
  const { type } = toRecord(parseJson(data));
  return typeof type === 'string' ? type : '';
}

function openMessageStream(): StreamDecoder {
  return {
    push({ data }: StreamEvent) {
      const type = typeOfEvent(data);
      if (type === 'error') return { payloads: [], error: decodeAnthropicError(200, data) };
      return { payloads: [data], done: type === 'message_stop' };
    },
  };
}
