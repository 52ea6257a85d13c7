import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { Call } from '../provider.ts';
import { type Json, asText, toRecords } from '../turns/json-value.ts';
import { wrappedPrefix } from '../turns/signatures.ts';

const mark = Buffer.from(`"${wrappedPrefix}`);

/**
 * The call without reasoning that another provider has signed, which Anthropic's API would reject: a conversation can move
 * between models. null: it has none, so that its bytes pass. A message that contains nothing else is left out.
 */
export function withoutForeignReasoning(call: Call): Call | null {
  const edited = call.edits['messages'];
  const bytes = edited === undefined ? call.body : Buffer.from(edited);
  if (!bytes.includes(mark)) return null;
  const list = edited === undefined ? memberValue(call.body, 'messages') : bytes;
  const messages = toRecords(JSON.parse(list?.toString() ?? '[]'));
  const kept = messages.flatMap((message): Json[] => {
    const { role, content } = message;
    if (role !== 'assistant' || !Array.isArray(content)) return [message];
    const blocks = toRecords(content).filter((block) => !isForeign(block));
    if (blocks.length === content.length) return [message];
    return blocks.length === 0 ? [] : [{ ...message, content: blocks }];
  });
  const isUnchanged = kept.length === messages.length && kept.every((message, index) => message === messages[index]);
  return isUnchanged ? null : { ...call, edits: { ...call.edits, messages: JSON.stringify(kept) } };
}

function isForeign({ type, signature, data }: Json): boolean {
  const signed = type === 'thinking' ? signature : type === 'redacted_thinking' ? data : undefined;
  return asText(signed)?.startsWith(wrappedPrefix) === true;
}
