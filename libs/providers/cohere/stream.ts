import { createChunkWriter, type ChunkWriter } from '../chat/chat-chunks.ts';
import { asText, parseJson, toRecord, type Json } from '../chat/json-value.ts';
import type { Call, StreamDecoder } from '../provider.ts';
import { readTokenCounts, toFinishReason, headOf } from './decode.ts';
import { decodeCohereError, toFailure } from './errors.ts';

type Pushed = ReturnType<StreamDecoder['push']>;

/** Converts one stream of v2 chat to OpenAI's chunks (docs.cohere.com/v2/docs/streaming). */
export function openChatStream(call: Call): StreamDecoder {
  const { strict } = call;
  let writer: ChunkWriter | undefined;
  /** Whether any arguments of a call were written, by its index. */
  const hasArguments = new Map<number, boolean>();

  const begin = (id?: unknown): ChunkWriter => (writer ??= createChunkWriter(headOf(id, call), call));
  const extension = (delta: Json): string[] => (strict ? [] : begin().choice().delta(delta));

  const writeContent = (index: number, { text, thinking }: Json): string[] => {
    if (typeof text === 'string' && text !== '') {
      const blocks = strict ? {} : { content_blocks: [{ index, delta: { text } }] };
      return begin()
        .choice()
        .delta({ content: text, ...blocks });
    }
    // A block gets its index with its first text; an empty block is not written.
    return typeof thinking === 'string' && thinking !== ''
      ? extension({ content_blocks: [{ index, delta: { thinking } }] })
      : [];
  };

  /**
   * For a tool without parameters, Cohere can send `null`: text before the first brace is dropped, and the end adds
   * `{}`.
   */
  const writeArguments = (index: number, fragment: string): string[] => {
    if (!hasArguments.get(index) && !/^\s*\{/.test(fragment)) return [];
    hasArguments.set(index, true);
    return begin().choice().toolArguments(index, fragment);
  };

  const finish = (delta: Json): Pushed => {
    const failure = toFailure(delta['finish_reason'], asText(delta['error']));
    if (failure) return { payloads: [], error: failure };
    const choice = begin().choice();
    const payloads = [
      ...choice.finish(toFinishReason(delta['finish_reason'], choice.hasToolCalls())),
      ...(delta['usage'] === undefined ? [] : begin().usage(readTokenCounts(toRecord(delta['usage']), strict))),
    ];
    return { payloads, done: true };
  };

  const push = (event: Json, data: string): Pushed => {
    const index = typeof event['index'] === 'number' ? event['index'] : 0;
    const delta = toRecord(event['delta']);
    const message = toRecord(delta['message']);
    switch (event['type']) {
      case 'message-start':
        return { payloads: begin(event['id']).choice().start() };
      case 'content-start':
      case 'content-delta':
        return { payloads: writeContent(index, toRecord(message['content'])) };
      case 'tool-plan-delta':
        return { payloads: asText(message['tool_plan']) ? extension({ tool_plan: message['tool_plan'] }) : [] };
      case 'tool-call-start': {
        const called = toRecord(message['tool_calls']);
        const { name, arguments: written } = toRecord(called['function']);
        hasArguments.set(index, false);
        return {
          payloads: [
            ...begin()
              .choice()
              .toolCall(index, { id: asText(called['id']) ?? '', name: asText(name) ?? '' }),
            ...writeArguments(index, asText(written) ?? ''),
          ],
        };
      }
      case 'tool-call-delta':
        return {
          payloads: writeArguments(
            index,
            asText(toRecord(toRecord(message['tool_calls'])['function'])['arguments']) ?? '',
          ),
        };
      case 'tool-call-end':
        return { payloads: hasArguments.get(index) === false ? begin().choice().toolArguments(index, '{}') : [] };
      case 'citation-start':
        return { payloads: message['citations'] === undefined ? [] : extension({ citations: [message['citations']] }) };
      case 'message-end':
        return finish(delta);
      case undefined:
        // An error outside of the protocol, in the format of an error response.
        return typeof event['message'] === 'string'
          ? { payloads: [], error: decodeCohereError(200, data) }
          : { payloads: [] };
      default:
        return { payloads: [] }; // Ends of blocks, and events that are added later.
    }
  };

  return {
    push: ({ data }) => {
      if (data === '[DONE]') return { payloads: [] }; // It adds nothing to message-end.
      const event = parseJson(data);
      // The core reports that the data is not valid JSON, or that the stream was cut off here.
      if (event === undefined) return { payloads: [data] };
      return push(toRecord(event), data);
    },
  };
}
