import type { CallOperation } from '#libs/calls/call.ts';
import { asRecord } from '../usage.ts';

/**
 * Returns the chunks of a stream, for a provider that answers a stream request with one JSON body, which official SDKs
 * would turn into an empty stream without an error. Unknown members of body, choice and message are kept. If usage was
 * requested, it is null in all chunks but the one that reports it (SSE-3).
 */
export function jsonToPayloads(
  operation: CallOperation,
  body: Readonly<Record<string, unknown>>,
  includeUsage: boolean,
): string[] {
  const { choices, usage, ...head } = body;
  const list = Array.isArray(choices) ? choices.map(asRecord) : [];
  const frame = operation === 'chat' ? { ...head, object: 'chat.completion.chunk' } : head;
  const noUsage = includeUsage ? { usage: null } : {};
  const payload = (choice: Readonly<Record<string, unknown>>): string =>
    JSON.stringify({ ...frame, choices: [choice], ...noUsage });
  const payloads = list.flatMap((choice, index) => {
    const at = { index, ...choice };
    if (operation !== 'chat') return [payload(at)];
    const { message, finish_reason, ...rest } = at as Record<string, unknown>;
    return [
      payload({ ...rest, delta: deltaOf(asRecord(message)), finish_reason: null }),
      payload({ index: rest['index'], delta: {}, finish_reason: finish_reason ?? 'stop' }),
    ];
  });
  if (includeUsage && usage !== undefined && usage !== null)
    payloads.push(JSON.stringify({ ...frame, choices: [], usage }));
  return payloads;
}

/** A whole message as one delta. Tool calls get the index that SDKs need to assemble them. */
function deltaOf(message: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const calls = message['tool_calls'];
  if (!Array.isArray(calls)) return { role: 'assistant', ...message };
  return {
    role: 'assistant',
    ...message,
    tool_calls: calls.map((call: unknown, index) => ({ index, ...asRecord(call) })),
  };
}
