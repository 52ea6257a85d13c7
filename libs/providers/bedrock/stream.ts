import type { UsageDetails } from '#libs/prices/usage.ts';
import type { Call, StreamDecoder } from '../provider.ts';
import { headOf, readTokenCounts, readConverseDetails, toFinishReason } from './decode.ts';
import { decodeException, isException } from './errors.ts';
import type { Thought, TokenCounts } from '../turns/answer.ts';
import { type Json, asText, parseJson, toRecord } from '../turns/json-value.ts';

/**
 * Converts one Converse stream to the client's format. It is done when both the stop reason and the usage have arrived; usage that
 * arrives first waits, because it is written last.
 */
export function openConverseStream(call: Call): StreamDecoder {
  const writer = call.dialect.openAnswer(headOf(call), call);
  const choice = writer.choice();
  /** Unfinished tool calls by the index of their block: whether any input has arrived. */
  const openCalls = new Map<number, boolean>();
  let stopped = false;
  let counts: TokenCounts | null = null;
  let details: UsageDetails | null = null;

  const continueBlock = (index: number, delta: Json): string[] => {
    const text = asText(delta['text']);
    if (text !== undefined) return text === '' ? [] : choice.text(text, index);
    if (delta['toolUse'] !== undefined) {
      const fragment = asText(toRecord(delta['toolUse'])['input']) ?? '';
      if (fragment !== '') openCalls.set(index, true);
      return choice.toolArguments(index, fragment);
    }
    const { text: thinking, signature, redactedContent } = toRecord(delta['reasoningContent']);
    const part: Thought = {
      ...textMember('thinking', thinking),
      ...textMember('signature', signature),
      ...textMember('data', redactedContent),
    };
    return Object.keys(part).length > 0 ? choice.thought(part, index) : [];
  };

  const startBlock = (index: number, start: Json): string[] => {
    if (start['toolUse'] === undefined) return [];
    const { toolUseId, name } = toRecord(start['toolUse']);
    openCalls.set(index, false);
    return choice.toolCall(index, { id: asText(toolUseId) ?? '', name: asText(name) ?? '' });
  };

  /** A call without arguments has `{}`, never an empty string. */
  const stopBlock = (index: number): string[] => {
    const had = openCalls.get(index);
    openCalls.delete(index);
    return had === false ? choice.toolArguments(index, '{}') : [];
  };

  const closing = (payloads: string[]): { payloads: string[]; done?: boolean } =>
    stopped && counts !== null ? { payloads: [...payloads, ...writer.usage(counts)], done: true } : { payloads };

  return {
    push: ({ event = '', data }) => {
      if (isException(event)) return { payloads: [], error: decodeException(event, data) };
      const parsed = parseJson(data);
      if (parsed === undefined) return { payloads: [data] }; // The core reports that it is not valid JSON.
      const payload = toRecord(parsed);
      const index = typeof payload['contentBlockIndex'] === 'number' ? payload['contentBlockIndex'] : 0;
      switch (event) {
        case 'messageStart':
          return { payloads: choice.start() };
        case 'contentBlockStart':
          return { payloads: startBlock(index, toRecord(payload['start'])) };
        case 'contentBlockDelta':
          return { payloads: continueBlock(index, toRecord(payload['delta'])) };
        case 'contentBlockStop':
          return { payloads: stopBlock(index) };
        case 'messageStop':
          if (stopped) return { payloads: [] };
          stopped = true;
          return closing(choice.finish(toFinishReason(payload['stopReason'])));
        case 'metadata':
          counts = readTokenCounts(toRecord(payload['usage']));
          details = readConverseDetails(payload);
          return closing([]);
        default:
          return { payloads: [] }; // `initial-response`, and events that are added later.
      }
    },
    end: () => writer.end(),
    details: () => details,
  };
}

const textMember = (name: string, value: unknown): Json =>
  typeof value === 'string' && value !== '' ? { [name]: value } : {};
