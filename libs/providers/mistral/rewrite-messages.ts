import { createHash } from 'node:crypto';
import { asText, toRecord, toRecords } from '../chat/json-value.ts';

/**
 * Converts the `content_blocks` of earlier answers to Mistral's format: thoughts before the text, both in `content`. Mistral
 * rejects members that it does not know with 422.
 */
export function thoughtsToContent(messages: string): string {
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
export function shortToolIds(messages: string): string {
  return messages.replaceAll(member, (whole, name: string, id: string) =>
    own.test(id) ? whole : `${name}"${shorten(id)}"`,
  );
}

const shorten = (id: string): string => createHash('sha256').update(id).digest('hex').slice(0, 9);
