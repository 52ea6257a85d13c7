import { refuse } from '#test/conformance/formats/cohere/decode-chat.ts';
import type { Message } from './cohere-schema.ts';

/** The results of a turn's tools follow it, each with one of its ids, and all of them. */
export function checkTurns(messages: readonly Message[]): void {
  let open: string[] = [];
  for (const [index, message] of messages.entries()) {
    if (message.role === 'tool') {
      const at = open.indexOf(message.tool_call_id);
      if (at === -1) {
        refuse(
          `invalid request: tool_call_id '${message.tool_call_id}' of messages[${index}] does not match any tool call of the preceding assistant message.`,
        );
      }
      open.splice(at, 1);
      continue;
    }
    if (open.length > 0)
      refuse(`invalid request: tool calls ${open.join(', ')} have no tool message before messages[${index}].`);
    if (message.role === 'assistant') {
      const calls = message.tool_calls ?? [];
      if (calls.length === 0 && isEmpty(message)) {
        refuse(`invalid request: messages[${index}] must have content or tool_calls.`);
      }
      open = calls.map(({ id }) => id);
      if (new Set(open).size < open.length)
        refuse(`invalid request: tool call ids of messages[${index}] are not unique.`);
    }
  }
  if (open.length > 0) refuse(`invalid request: tool calls ${open.join(', ')} have no tool message.`);
}

function isEmpty(message: Extract<Message, { role: 'assistant' }>): boolean {
  return (message.content ?? '').length === 0;
}
