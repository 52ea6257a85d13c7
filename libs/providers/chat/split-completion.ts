import { type Json, toRecord, toRecords } from '../turns/json-value.ts';

/**
 * Returns the chunks of a stream, for a provider that answers a stream request with one JSON body, which official SDKs
 * would turn into an empty stream without an error. Unknown members of body, choice and message are kept. If usage was
 * requested, it is null in all chunks but the one that reports it (SSE-3).
 */
export function splitCompletion(operation: 'chat' | 'completions', body: Json, includeUsage: boolean): string[] {
  const { choices, usage, ...head } = body;
  const frame = operation === 'chat' ? { ...head, object: 'chat.completion.chunk' } : head;
  const noUsage = includeUsage ? { usage: null } : {};
  const payload = (choice: Json): string => JSON.stringify({ ...frame, choices: [choice], ...noUsage });
  const payloads = toRecords(choices).flatMap((choice, index) => {
    const at = { index, ...choice };
    if (operation !== 'chat') return [payload(at)];
    const { message, finish_reason, ...rest } = at as Record<string, unknown>;
    return [
      payload({ ...rest, delta: deltaOf(toRecord(message)), finish_reason: null }),
      payload({ index: rest['index'], delta: {}, finish_reason: finish_reason ?? 'stop' }),
    ];
  });
  if (includeUsage && usage !== undefined && usage !== null)
    payloads.push(JSON.stringify({ ...frame, choices: [], usage }));
  return payloads;
}

/** A whole message as one delta. Tool calls get the index that SDKs need to assemble them. */
function deltaOf(message: Json): Json {
  const calls = message['tool_calls'];
  if (!Array.isArray(calls)) return { role: 'assistant', ...message };
  return {
    role: 'assistant',
    ...message,
    tool_calls: calls.map((call: unknown, index) => ({ index, ...toRecord(call) })),
  };
}
