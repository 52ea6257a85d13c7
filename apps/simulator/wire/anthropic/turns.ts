import { hexOf, hashText } from '../../model/hash.ts';
import { Refusal } from '../wire-format.ts';

export type Block =
  | { type: 'text'; text: string }
  | { type: 'image' | 'document' }
  | { type: 'tool_use'; id: string }
  | { type: 'tool_result'; tool_use_id: string }
  | { type: 'thinking'; thinking: string; signature: string }
  | { type: 'redacted_thinking' };
export type Message = { role: 'user' | 'assistant'; content: string | Block[] };
export type Turn = { role: 'user' | 'assistant'; content: readonly Block[]; index: number };

/** The signature of a thinking block. It is derived from the thoughts, so that altered ones are detected. */
export function signatureOf(thinking: string): string {
  return Buffer.from(`simulator:${hexOf(hashText(thinking), 96)}`).toString('base64');
}

/** Merges consecutive messages with the same role, as the service does; strings become blocks. */
export function mergeTurns(messages: readonly Message[]): Turn[] {
  const turns: { role: 'user' | 'assistant'; content: Block[]; index: number }[] = [];
  for (const [index, { role, content }] of messages.entries()) {
    if (content.length === 0 && (role === 'user' || index < messages.length - 1)) {
      refuse(
        `messages.${index}: all messages must have non-empty content except for the optional final assistant message`,
      );
    }
    const blocks: Block[] = typeof content === 'string' ? [{ type: 'text', text: content }] : content;
    const last = turns.at(-1);
    if (last?.role === role) last.content.push(...blocks);
    else turns.push({ role, content: [...blocks], index });
  }
  return turns;
}

/** A 400 with Anthropic's wording. */
export function refuse(message: string): never {
  throw new Refusal({ status: 400, message, type: 'invalid_request_error' });
}
