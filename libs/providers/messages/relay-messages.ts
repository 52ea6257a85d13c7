import { memberValue, spliceMembers, type MemberEdits } from '#libs/kernel/json/json-members.ts';
import { decodeAnthropicError } from '../anthropic/errors.ts';
import { withOwnBreakpoints } from './cache-breakpoints.ts';
import { withoutForeignReasoning } from './foreign-reasoning.ts';
import { toRecord, parseJson } from '../turns/json-value.ts';
import type { Call, StreamDecoder, StreamEvent, Translation } from '../provider.ts';

/**
 * Messages to a provider that has Anthropic's API itself. Request, answer, events and errors pass unchanged, because
 * clients depend on their order, on members of betas, on signatures, and on the wording of errors. Only the reasoning of
 * other providers is taken out.
 */
export const relayMessages = (
  encode: Translation['encode'],
  more: Partial<Pick<Translation, 'openFraming' | 'decodeError' | 'serves'>> = {},
): Translation => ({
  passThrough: true,
  encode: (call, upstream) => {
    const marked = withOwnBreakpoints(call);
    const own = withoutForeignReasoning(marked);
    return own === null ? encode(marked, upstream) : { ...encode(own, upstream), dropped: ['reasoning'] };
  },
  openStream: () => openMessageStream(more.decodeError ?? decodeAnthropicError),
  decodeError: decodeAnthropicError,
  ...more,
});

/** The client's bytes, with the model of the target, what the config changes, and the members of an API. */
export function messageBody({ body, edits }: Call, own: MemberEdits = {}): Uint8Array {
  const all = { ...edits, ...own };
  return Object.keys(all).length === 0 ? body : spliceMembers(body, all);
}

/** The model that is requested, for an API that has it in its path. */
export const modelOfMessages = ({ body, edits }: Call): unknown =>
  JSON.parse((edits['model'] ?? memberValue(body, 'model') ?? 'null').toString());

/** The type of an event; '' if it is not a word with dots, because it becomes a line of the client's stream. */
export function typeOfEvent(data: string): string {
  // The first member of what Anthropic sends.
  const found = /^\s*\{\s*"type"\s*:\s*"([\w.]+)"/.exec(data)?.[1];
  if (found !== undefined) return found;
  const { type } = toRecord(parseJson(data));
  return typeof type === 'string' && /^[\w.]+$/.test(type) ? type : '';
}

function openMessageStream(decodeError: Translation['decodeError']): StreamDecoder {
  return {
    push({ data }: StreamEvent) {
      const type = typeOfEvent(data);
      if (type === 'error') return { payloads: [], error: decodeError(200, data) };
      return { payloads: [data], done: type === 'message_stop' };
    },
  };
}
