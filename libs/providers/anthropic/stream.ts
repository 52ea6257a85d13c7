import { mergeCounts } from '../messages/message-usage.ts';
import type { Call, StreamDecoder, StreamEvent } from '../provider.ts';
import { decodeAnthropicError } from './errors.ts';
import { headOf, readClaudeDetails, readRefusal, readTokenCounts, toFinishReason } from './decode.ts';
import { newCompletionId } from '../chat/chat-chunks.ts';
import type { ChoiceWriter, StreamWriter, Thought } from '../turns/answer.ts';
import { type Json, asText, parseJson, toRecord, toRecords } from '../turns/json-value.ts';

type Pushed = ReturnType<StreamDecoder['push']>;

/** Writes the blocks of one message, by their index. `choice` is called only for blocks that are written. */
function createBlockWriter(choice: () => ChoiceWriter) {
  /** Unfinished tool calls by the index of their block: the input at the start, and whether fragments followed. */
  const openCalls = new Map<number, { input: Json; fragments: number }>();

  const start = (index: number, block: Json): string[] => {
    switch (block['type']) {
      case 'tool_use':
        openCalls.set(index, { input: toRecord(block['input']), fragments: 0 });
        return choice().toolCall(index, { id: asText(block['id']) ?? '', name: asText(block['name']) ?? '' });
      case 'text':
        return writeText(index, asText(block['text']) ?? '');
      case 'thinking':
        return writeThinking(index, 'thinking', block['thinking']);
      case 'redacted_thinking':
        return writeThinking(index, 'data', block['data']);
      default:
        return [];
    }
  };

  const writeText = (index: number, text: string): string[] => (text === '' ? [] : choice().text(text, index));

  const writeThinking = (index: number, member: keyof Thought, value: unknown): string[] =>
    typeof value !== 'string' || value === '' ? [] : choice().thought({ [member]: value }, index);

  const continueBlock = (index: number, delta: Json): string[] => {
    switch (delta['type']) {
      case 'text_delta':
        return writeText(index, asText(delta['text']) ?? '');
      case 'input_json_delta': {
        const fragment = asText(delta['partial_json']) ?? '';
        const open = openCalls.get(index);
        if (open && fragment !== '') open.fragments += 1;
        return choice().toolArguments(index, fragment);
      }
      case 'thinking_delta':
        return writeThinking(index, 'thinking', delta['thinking']);
      case 'signature_delta':
        return writeThinking(index, 'signature', delta['signature']);
      default:
        return [];
    }
  };

  /**
   * A call without fragments has its whole input at the start; without arguments that is `{}`, never an empty string.
   */
  const stop = (index: number): string[] => {
    const open = openCalls.get(index);
    openCalls.delete(index);
    return open?.fragments === 0 ? choice().toolArguments(index, JSON.stringify(open.input)) : [];
  };

  return { start, continue: continueBlock, stop };
}

/**
 * Converts one stream of Claude to the client's format. Finish reason and usage are written together as soon as Claude sends the
 * stop reason, so that a connection that breaks afterwards loses nothing.
 */
export function openClaudeStream(call: Call): StreamDecoder {
  let writer: StreamWriter | undefined;
  let usage: Json = {};
  let finished = false;

  const begin = (message: Json): StreamWriter =>
    (writer ??= call.dialect.openAnswer(headOf(message, call, newCompletionId()), call));
  const choice = (): ChoiceWriter => begin({}).choice();
  const blocks = createBlockWriter(choice);

  const finish = (delta: Json): string[] => {
    finished = true;
    const refusal = readRefusal(delta);
    return [
      ...(refusal === null ? [] : choice().refusal(refusal)),
      ...choice().finish(toFinishReason(delta['stop_reason'])),
      ...begin({}).usage(readTokenCounts(usage)),
    ];
  };

  const push = (event: Json, data: string): Pushed => {
    const index = typeof event['index'] === 'number' ? event['index'] : 0;
    switch (event['type']) {
      case 'message_start': {
        const message = toRecord(event['message']);
        usage = mergeCounts(usage, message['usage']);
        const started = begin(message).choice().start();
        const held = toRecords(message['content']).flatMap((block, at) => [
          ...blocks.start(at, block),
          ...blocks.stop(at),
        ]);
        return { payloads: [...started, ...held] };
      }
      case 'content_block_start':
        return { payloads: blocks.start(index, toRecord(event['content_block'])) };
      case 'content_block_delta':
        return { payloads: blocks.continue(index, toRecord(event['delta'])) };
      case 'content_block_stop':
        return { payloads: blocks.stop(index) };
      case 'message_delta': {
        usage = mergeCounts(usage, event['usage']);
        const delta = toRecord(event['delta']);
        return { payloads: finished || !asText(delta['stop_reason']) ? [] : finish(delta) };
      }
      case 'message_stop':
        return { payloads: finished ? [] : finish({}), done: true };
      case 'error':
        return { payloads: [], error: decodeAnthropicError(200, data) };
      default:
        return { payloads: [] }; // Pings, and events that are added later.
    }
  };

  return {
    push: ({ data }: StreamEvent) => {
      const event = parseJson(data);
      // The core reports that the data is not valid JSON, or that the stream was cut off here.
      if (event === undefined) return { payloads: [data] };
      return push(toRecord(event), data);
    },
    end: () => writer?.end() ?? [],
    details: () => readClaudeDetails(usage),
  };
}
