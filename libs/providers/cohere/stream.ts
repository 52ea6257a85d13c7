import type { Call, StreamDecoder } from '../provider.ts';
import { readTokenCounts, toFinishReason, headOf } from './decode.ts';
import { decodeCohereError, toFailure } from './errors.ts';
import type { ChoiceWriter, StreamWriter } from '../turns/answer.ts';
import { type Json, asText, parseJson, toRecord } from '../turns/json-value.ts';

type Pushed = ReturnType<StreamDecoder['push']>;

/** Writes the tool calls of one stream, by their index. */
function createToolCalls(choice: () => ChoiceWriter) {
  /** Whether any arguments of a call were written. */
  const hasArguments = new Map<number, boolean>();

  /**
   * For a tool without parameters, Cohere can send `null`: text before the first brace is dropped, and the end adds
   * `{}`.
   */
  const writeArguments = (index: number, called: Json): string[] => {
    const fragment = asText(toRecord(called['function'])['arguments']) ?? '';
    if (!hasArguments.get(index) && !/^\s*\{/.test(fragment)) return [];
    hasArguments.set(index, true);
    return choice().toolArguments(index, fragment);
  };

  return {
    start: (index: number, called: Json): string[] => {
      const name = asText(toRecord(called['function'])['name']) ?? '';
      hasArguments.set(index, false);
      const payloads = choice().toolCall(index, { id: asText(called['id']) ?? '', name });
      return [...payloads, ...writeArguments(index, called)];
    },
    continue: writeArguments,
    end: (index: number): string[] => (hasArguments.get(index) === false ? choice().toolArguments(index, '{}') : []),
  };
}

/** Converts one stream of v2 chat to the client's format (docs.cohere.com/v2/docs/streaming). */
export function openChatStream(call: Call): StreamDecoder {
  let writer: StreamWriter | undefined;

  const begin = (id?: unknown): StreamWriter => (writer ??= call.dialect.openAnswer(headOf(id, call), call));
  const choice = (): ChoiceWriter => begin().choice();
  const toolCalls = createToolCalls(choice);
  const extension = (delta: Json): string[] => choice().extension(delta);

  const writeContent = (index: number, { text, thinking }: Json): string[] => {
    if (typeof text === 'string' && text !== '') return choice().text(text, index);
    // A block gets its index with its first text; an empty block is not written.
    return typeof thinking === 'string' && thinking !== '' ? choice().thought({ thinking }, index) : [];
  };

  const finish = (delta: Json): Pushed => {
    const failure = toFailure(delta['finish_reason'], asText(delta['error']));
    if (failure) return { payloads: [], error: failure };
    const payloads = [
      ...choice().finish(toFinishReason(delta['finish_reason'], choice().hasToolCalls())),
      ...(delta['usage'] === undefined ? [] : begin().usage(readTokenCounts(toRecord(delta['usage'])))),
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
      case 'tool-call-start':
        return { payloads: toolCalls.start(index, toRecord(message['tool_calls'])) };
      case 'tool-call-delta':
        return { payloads: toolCalls.continue(index, toRecord(message['tool_calls'])) };
      case 'tool-call-end':
        return { payloads: toolCalls.end(index) };
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
    end: () => writer?.end() ?? [],
  };
}
