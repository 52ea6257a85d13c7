import { type Json, asText, toRecord, toRecords } from '../turns/json-value.ts';

/**
 * A whole message as the events of a stream. Blocks that are not text, reasoning or calls begin with all of their content.
 */
export function splitMessage(message: Json): string[] {
  const { content, stop_reason, stop_sequence, stop_details, usage, ...head } = message;
  const blocks = toRecords(content);
  const ended = { stop_reason, stop_sequence: stop_sequence ?? null, ...(stop_details ? { stop_details } : {}) };
  const begun = { ...head, content: [], stop_reason: null, stop_sequence: null };
  const counts = toRecord(usage);
  return [
    { type: 'message_start', message: { ...begun, usage: { ...counts, output_tokens: 0 } } },
    ...blocks.flatMap((block, index) => {
      const { start, deltas } = splitBlock(block);
      return [
        { type: 'content_block_start', index, content_block: start },
        ...deltas.map((delta) => ({ type: 'content_block_delta', index, delta })),
        { type: 'content_block_stop', index },
      ];
    }),
    { type: 'message_delta', delta: ended, usage: counts },
    { type: 'message_stop' },
  ].map((event) => JSON.stringify(event));
}

function splitBlock(block: Json): { start: Json; deltas: Json[] } {
  switch (block['type']) {
    case 'text': {
      const citations = toRecords(block['citations']);
      const text = asText(block['text']) ?? '';
      return {
        start: { ...block, text: '', ...(citations.length > 0 ? { citations: [] } : {}) },
        deltas: [
          ...citations.map((citation) => ({ type: 'citations_delta', citation })),
          ...(text === '' ? [] : [{ type: 'text_delta', text }]),
        ],
      };
    }
    case 'thinking': {
      const { thinking, signature } = block;
      return {
        start: { ...block, thinking: '', signature: '' },
        deltas: [
          ...(thinking ? [{ type: 'thinking_delta', thinking }] : []),
          ...(signature ? [{ type: 'signature_delta', signature }] : []),
        ],
      };
    }
    case 'tool_use':
    case 'server_tool_use': {
      const partial_json = JSON.stringify(block['input'] ?? {});
      return { start: { ...block, input: {} }, deltas: [{ type: 'input_json_delta', partial_json }] };
    }
    default:
      return { start: block, deltas: [] };
  }
}
