import type { Amend } from '../dialect.ts';
import { asText, toRecord, toRecords, type Json } from '../chat/json-value.ts';

/**
 * Converts Mistral's answers to OpenAI's format: tool calls get the index and type that clients need, a null list is removed,
 * and content that is a list of parts (from models that think) becomes its text. Thoughts become `content_blocks` if strict
 * compliance is off.
 */
export function openMistralAmend(): Amend {
  let calls = 0;

  const amendMessage = (message: Json, strict: boolean, streamed: boolean): Json => {
    let amended = message;
    const { tool_calls: listed, ...rest } = message;
    if (listed === null || (Array.isArray(listed) && listed.length === 0)) amended = rest;
    else if (Array.isArray(listed)) {
      const named = toRecords(listed).map((call) => {
        const { index = calls, ...members } = call;
        calls = Math.max(calls, Number(index) + 1);
        // Mistral sometimes sends null as the type.
        const typed = { ...members, type: asText(call['type']) ?? 'function' };
        return streamed ? { index, ...typed } : typed;
      });
      amended = { ...message, tool_calls: named };
    }
    return Array.isArray(message['content']) ? withText(amended, strict, streamed) : amended;
  };

  return (answer, { strict }) => {
    const choices = toRecords(answer['choices']).map((choice) => {
      const member = 'delta' in choice ? 'delta' : 'message';
      const message = toRecord(choice[member]);
      const amended = amendMessage(message, strict, member === 'delta');
      return amended === message ? choice : { ...choice, [member]: amended };
    });
    if (choices.every((choice, index) => choice === toRecords(answer['choices'])[index])) return answer;
    return choices.every(saysNothing) && answer['usage'] === undefined ? null : { ...answer, choices };
  };
}

/** `[{type: 'thinking', thinking: [{type: 'text', text}]}, {type: 'text', text}]`. */
function withText(message: Json, strict: boolean, streamed: boolean): Json {
  const parts = toRecords(message['content']).flatMap((part): ['text' | 'thinking', string][] => {
    if (part['type'] === 'text') return [['text', asText(part['text']) ?? '']];
    if (part['type'] !== 'thinking') return [];
    const { thinking } = part;
    return [
      [
        'thinking',
        asText(thinking) ??
          toRecords(thinking)
            .map(({ text }) => asText(text) ?? '')
            .join(''),
      ],
    ];
  });
  const text = parts.map(([type, said]) => (type === 'text' ? said : '')).join('');
  const { content: _parts, ...rest } = message;
  // Text is already in `content`, so only thoughts become blocks.
  const blocks = parts.flatMap(([type, said]) =>
    type === 'text' ? [] : [streamed ? { index: 0, delta: { thinking: said } } : { type, thinking: said }],
  );
  return {
    ...rest,
    ...(text !== '' || !streamed ? { content: text } : {}),
    ...(strict || blocks.length === 0 ? {} : { content_blocks: blocks }),
  };
}

/** Whether a chunk is empty: one that had only thoughts, which a strict client does not get. */
function saysNothing({ delta, finish_reason: reason }: Json): boolean {
  return delta !== undefined && Object.keys(toRecord(delta)).length === 0 && asText(reason) === undefined;
}
