import { GatewayError } from '#libs/kernel/errors.ts';
import { parseInput } from '../chat/chat-messages.ts';
import { type Json, asText, toRecord, toRecords } from '../turns/json-value.ts';
import { readMedia } from '../turns/media.ts';
import { type ContentPart, type Conversation, type ToolCall, type Turn, unsupported } from '../turns/turn-request.ts';
import { readReasoning } from './reasoning.ts';
import { flatName, wrapInput } from './tool-names.ts';

type AssistantTurn = Extract<Turn, { role: 'assistant' }>;
type Answered = { parts: ContentPart[]; toolCalls: ToolCall[]; blocks: Json[]; param: string };

/** Items of tools that ran at OpenAI. The text of the answer has what they found. */
const leftOut = new Set<unknown>([
  'web_search_call',
  'file_search_call',
  'code_interpreter_call',
  'image_generation_call',
  'mcp_call',
  'mcp_list_tools',
  'tool_search_call',
  'tool_search_output',
]);

/**
 * Reads `instructions` and `input` of a request that the contract has checked (libs/contracts/calls/responses.ts).
 * Consecutive items of the model become one turn. Throws invalid_request, naming the param, for input that no provider
 * accepts, and `unsupported_parameter` for items and files that are stored at OpenAI.
 */
export function decodeInput({ instructions, input }: Json): Conversation {
  const reader = new InputReader();
  if (typeof instructions === 'string' && instructions !== '') reader.instruct(instructions, 'instructions');
  if (typeof input === 'string') reader.read({ role: 'user', content: input }, 'input');
  else for (const [index, item] of toRecords(input).entries()) reader.read(item, `input[${index}]`);
  return reader.end();
}

class InputReader {
  readonly #system: Conversation['system'][number][] = [];
  readonly #messages: Turn[] = [];
  readonly #hints: string[] = [];
  readonly #namesById = new Map<string, string>();
  #open: Answered | null = null;

  instruct(text: string, param: string): void {
    this.#system.push({ text, param, raw: {} });
  }

  read(item: Json, param: string): void {
    const type = asText(item['type']) ?? (item['role'] === undefined ? '' : 'message');
    switch (type) {
      case 'message':
        return this.#readMessage(item, param);
      case 'reasoning': {
        const { blocks } = this.#answer(param);
        blocks.push(readReasoning(item));
        return;
      }
      case 'function_call':
      case 'custom_tool_call':
        return this.#readCall(item, param);
      case 'function_call_output':
      case 'custom_tool_call_output':
        return this.#readOutput(item, param);
      case 'additional_tools': // Read with the other tools.
        return;
      case 'item_reference':
        // The AI SDK refers to reasoning within a loop of tool calls. The conversation is complete without it.
        if (asText(item['id'])?.startsWith('rs_') === true) return void this.#hints.push(param);
        throw unsupported(
          param,
          "only the provider that stored the item has it. Send the item itself, which clients do with 'store': false",
        );
      default:
        this.#readOther(type, param);
    }
  }

  end(): Conversation {
    this.#endAnswer();
    return { system: this.#system, messages: this.#messages, hints: this.#hints };
  }

  #readOther(type: string, param: string): void {
    if (type === '') throw invalid(`${param}.type`, 'expected the type of an item, or a role');
    if (leftOut.has(type)) return void this.#hints.push(param);
    const why = `only providers with the Responses API have items of type '${type.slice(0, 100)}'`;
    throw unsupported(`${param}.type`, why);
  }

  #readMessage(item: Json, param: string): void {
    const parts = this.#readParts(item['content'], `${param}.content`);
    switch (item['role']) {
      case 'system':
      case 'developer':
        for (const part of parts) this.#instructWith(part);
        return;
      case 'user':
        this.#endAnswer();
        this.#messages.push({ role: 'user', parts, param, raw: {} });
        return;
      case 'assistant': {
        const open = this.#answer(param);
        open.parts.push(...parts);
        for (const part of parts) {
          if (part.type === 'text' || part.type === 'refusal') open.blocks.push({ type: 'text', text: part.text });
        }
        return;
      }
      default:
        throw invalid(`${param}.role`, 'expected one of user, assistant, system, developer');
    }
  }

  #instructWith(part: ContentPart): void {
    if (part.type !== 'text') throw invalid(part.param, 'system and developer messages can contain only text');
    this.instruct(part.text, part.param);
  }

  #readCall(item: Json, param: string): void {
    const isCustom = item['type'] === 'custom_tool_call';
    const id = asText(item['call_id']) ?? '';
    const name = flatName(asText(item['namespace']) ?? null, asText(item['name']) ?? '');
    const text = asText(item['input']) ?? '';
    const written = isCustom ? wrapInput(text) : (asText(item['arguments']) ?? '');
    const input = isCustom ? { input: text } : parseInput(written, `${param}.arguments`);
    this.#namesById.set(id, name);
    this.#answer(param).toolCalls.push({ id, name, input, written, param, raw: {} });
  }

  #readOutput(item: Json, param: string): void {
    this.#endAnswer();
    const toolCallId = asText(item['call_id']) ?? '';
    this.#messages.push({
      role: 'tool',
      parts: this.#readParts(item['output'], `${param}.output`),
      toolCallId,
      toolName: this.#namesById.get(toolCallId) ?? null,
      isError: false,
      param,
      raw: {},
    });
  }

  /** The turn of the model that is being read. */
  #answer(param: string): Answered {
    return (this.#open ??= { parts: [], toolCalls: [], blocks: [], param });
  }

  #endAnswer(): void {
    if (this.#open === null) return;
    const turn: AssistantTurn = { role: 'assistant', ...this.#open, raw: {} };
    this.#messages.push(turn);
    this.#open = null;
  }

  #readParts(content: unknown, param: string): ContentPart[] {
    if (typeof content === 'string') return content === '' ? [] : [{ type: 'text', text: content, param, raw: {} }];
    return toRecords(content).map((raw, index) => readPart(raw, `${param}[${index}]`, this.#hints));
  }
}

const invalid = (param: string, expected: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${expected}.`, { param });

function readPart(raw: Json, param: string, hints: string[]): ContentPart {
  const type = asText(raw['type']) ?? '';
  switch (type) {
    case 'input_text':
    case 'output_text':
    case 'text':
      return { type: 'text', text: asText(raw['text']) ?? '', param, raw: {} };
    case 'refusal':
      return { type, text: asText(raw['refusal']) ?? '', param, raw: {} };
    case 'input_image': {
      const detail = asText(raw['detail']) ?? null;
      if (detail !== null && detail !== 'auto') hints.push(`${param}.detail`);
      const url = asText(raw['image_url']);
      if (!url) throw storedFile(raw, param, 'image_url');
      return { type: 'image', media: readMedia(url, `${param}.image_url`), detail, param, raw: {} };
    }
    case 'input_audio': {
      const { data, format } = toRecord(raw['input_audio']);
      const base64 = asText(data);
      if (!base64) throw invalid(`${param}.input_audio.data`, 'expected the audio in base64');
      return { type: 'audio', base64, format: asText(format) ?? 'wav', param, raw: {} };
    }
    case 'input_file':
      return readFile(raw, param);
    default:
      return { type: 'unknown', name: type, param, raw: {} };
  }
}

function readFile(raw: Json, param: string): ContentPart {
  const name = asText(raw['filename']) ?? null;
  const [data, url] = [asText(raw['file_data']), asText(raw['file_url'])];
  if (url) return { type: 'file', media: readMedia(url, `${param}.file_url`), name, param, raw: {} };
  if (!data) throw storedFile(raw, param, 'file_data or file_url');
  if (/^data:/i.test(data)) return { type: 'file', media: readMedia(data, `${param}.file_data`), name, param, raw: {} };
  // Bare base64 does not contain its type.
  const mediaType = /\.txt$/i.test(name ?? '') ? 'text/plain' : 'application/pdf';
  return { type: 'file', media: { kind: 'bytes', mediaType, base64: data }, name, param, raw: {} };
}

/** The error for a part without content. */
const storedFile = (raw: Json, param: string, members: string): GatewayError =>
  asText(raw['file_id'])
    ? unsupported(`${param}.file_id`, `only the provider that stored the file has it. Send its content as ${members}`)
    : invalid(param, `expected ${members}`);
