import { openAiCompatible } from '../openai-compatible.ts';
import { createHash } from 'node:crypto';
import type { Amend } from '../variant.ts';
import { type Json, asText, toRecord, toRecords } from '../turns/json-value.ts';

/** Close enough to OpenAI's API to pass bytes through (MISTRAL-1). */
export const mistral = openAiCompatible({
  id: 'mistral',
  aliases: ['mistral-ai'],
  baseUrl: 'https://api.mistral.ai/v1',
  operations: ['chat', 'embeddings', 'models'],
  // Usage is sent without asking. Unknown members, like `stream_options`, are rejected with 422.
  asksForUsage: false,
  variant: {
    renames: { seed: 'random_seed', max_completion_tokens: 'max_tokens' },
    values: { tool_choice: { required: 'any' } },
    removes: ['stream_options'],
    messages: [
      { hint: 'tool_call_id', rewrite: shortToolIds },
      { hint: 'content_blocks', rewrite: thoughtsToContent },
    ],
    finishReasons: { model_length: 'length', error: 'failure' },
    usageBesideChoices: true,
    answers: { hints: ['"tool_calls"', '"content":[', '"content": [', '"thinking"'], open: openMistralAmend },
    notes: [
      'ids of other providers’ tool calls are shortened',
      'tool calls get index and type',
      'thoughts are not part of content',
    ],
  },
});

/**
 * Converts the `content_blocks` of earlier answers to Mistral's format: thoughts before the text, both in `content`. Mistral
 * rejects members that it does not know with 422.
 */
function thoughtsToContent(messages: string): string {
  const list: unknown = JSON.parse(messages);
  if (!Array.isArray(list)) return messages;
  const rewritten = list.map((message: unknown) => {
    const { content_blocks: blocks, ...rest } = toRecord(message);
    if (blocks === undefined) return message;
    const thoughts = toRecords(blocks).flatMap(({ type, thinking }) =>
      type === 'thinking' ? [{ type, thinking: [{ type: 'text', text: asText(thinking) ?? '' }] }] : [],
    );
    const { content } = rest;
    if (thoughts.length === 0) return rest;
    const said =
      typeof content === 'string' ? (content === '' ? [] : [{ type: 'text', text: content }]) : toRecords(content);
    return { ...rest, content: [...thoughts, ...said] };
  });
  return JSON.stringify(rewritten);
}

const own = /^[A-Za-z0-9]{9}$/;
const member = /("(?:id|tool_call_id)"\s*:\s*)"([^"\\]*)"/g;

/**
 * Mistral accepts only tool call ids in its own form: nine letters and digits. An id from another provider, where the
 * conversation began, is replaced by the start of its digest, which is the same for a call and its result.
 */
function shortToolIds(messages: string): string {
  return messages.replaceAll(member, (whole, name: string, id: string) =>
    own.test(id) ? whole : `${name}"${shorten(id)}"`,
  );
}

const shorten = (id: string): string => createHash('sha256').update(id).digest('hex').slice(0, 9);

/**
 * Converts Mistral's answers to OpenAI's format: tool calls get the index and type that clients need, a null list is removed,
 * and content that is a list of parts (from models that think) becomes its text. Thoughts become `content_blocks` if strict
 * compliance is off.
 */
function openMistralAmend(): Amend {
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
