import { joinText, unsupportedPart, type ChatMessage, type ContentPart, type ToolCall } from '../chat/chat-messages.ts';
import type { ChatRequest } from '../chat/chat-request.ts';
import { compact, asText, toRecord, type Json } from '../chat/json-value.ts';

/** Messages of Cohere's v2 chat: OpenAI's roles, with documents, a plan next to tool calls, and thinking as content. */
export function encodeMessages({ system, messages }: Pick<ChatRequest, 'system' | 'messages'>): Json[] {
  return [...system.map(({ text }) => ({ role: 'system', content: text })), ...messages.map(encodeMessage)];
}

function encodeMessage(message: ChatMessage): Json {
  switch (message.role) {
    case 'user':
      return { role: 'user', content: encodeUserParts(message.parts) };
    case 'assistant':
      return encodeAssistant(message);
    case 'tool':
      return { role: 'tool', tool_call_id: message.toolCallId, content: encodeResult(message.parts) };
  }
}

/** Content can be left out only if there are tool calls. */
function encodeAssistant({ parts, toolCalls, blocks, raw }: Extract<ChatMessage, { role: 'assistant' }>): Json {
  const text = joinText(parts);
  // The blocks of an earlier answer include its text. Blocks that Cohere does not know are from another provider.
  const known = blocks.filter(({ type }) => type === 'thinking' || type === 'text');
  const thought = known.some(({ type }) => type === 'thinking');
  const content = thought
    ? known.map(({ type, ...block }) =>
        type === 'thinking' ? { type, thinking: block['thinking'] } : { type, text: block['text'] },
      )
    : text === '' && toolCalls.length > 0
      ? undefined
      : text;
  return compact({
    role: 'assistant',
    content,
    tool_plan: asText(raw['tool_plan']),
    tool_calls: toolCalls.length > 0 ? toolCalls.map(encodeToolCall) : undefined,
  });
}

/** The text of the arguments is sent exactly as the client wrote it: Cohere's calls have OpenAI's format. */
function encodeToolCall({ id, name, raw }: ToolCall): Json {
  const written = asText(toRecord(raw['function'])['arguments']) ?? asText(raw['arguments']) ?? '';
  return { id, type: 'function', function: { name, arguments: written.trim() === '' ? '{}' : written } };
}

function encodeUserParts(parts: readonly ContentPart[]): string | Json[] {
  if (parts.every(({ type }) => type === 'text')) return joinText(parts);
  return parts.map((part) => {
    if (part.type === 'text') return { type: 'text', text: part.text };
    if (part.type !== 'image' || part.media.kind === 'id') {
      throw unsupportedPart(
        part,
        'Cohere',
        "messages can only contain text and images. Use the 'documents' parameter for longer texts",
      );
    }
    const { media, detail } = part;
    const url = media.kind === 'url' ? media.url : `data:${media.mediaType};base64,${media.base64}`;
    return { type: 'image_url', image_url: { url, ...(detail === null ? {} : { detail }) } };
  });
}

/** A result is text, or a list whose documents can be cited: Cohere's own parts are sent unchanged. */
function encodeResult(parts: readonly ContentPart[]): string | Json[] {
  if (parts.every(({ type }) => type === 'text')) return joinText(parts);
  return parts.map((part) => {
    if (part.type === 'text') return { type: 'text', text: part.text };
    if (part.type === 'unknown' && part.name === 'document')
      return { type: 'document', document: part.raw['document'] };
    throw unsupportedPart(part, 'Cohere', 'tool results can only contain text and documents');
  });
}
