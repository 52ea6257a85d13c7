import type { Conversation, Json } from './conformance-case.ts';
import type { Read } from './read-answer.ts';

/** The request that a client sends after tool calls: the answer as it came, then each call's result, by its id. */
export function nextTurn({ request, results }: Conversation, { text, toolCalls }: Read): Json {
  const { messages = [] } = request as { messages?: readonly Json[] };
  const answers = toolCalls.map(({ id, function: { name } }) => {
    const content = results[name];
    if (content === undefined) throw new Error(`the case has no result for the tool ${name}`);
    return { role: 'tool', tool_call_id: id, content };
  });
  return {
    ...request,
    messages: [...messages, { role: 'assistant', content: text, tool_calls: toolCalls }, ...answers],
  };
}
