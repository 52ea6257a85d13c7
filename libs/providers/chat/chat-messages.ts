import { GatewayError } from '#libs/kernel/errors.ts';
import { readMedia, type Media } from './media.ts';
import { asText, parseJson, toRecord, toRecords, type Json } from './json-value.ts';

/** A location in the client's body, in the form of an error's `param` (`messages[2].content[0]`). */
type Placed = { param: string; raw: Json };

/** `raw` is the client's own object, for members that only some providers support (`cache_control`). */
export type ContentPart = Placed &
  (
    | { type: 'text'; text: string }
    | { type: 'refusal'; text: string }
    | { type: 'image'; media: Media; detail: string | null }
    | { type: 'audio'; base64: string; format: string }
    | { type: 'file'; media: Media; name: string | null }
    | { type: 'unknown'; name: string }
  );

/** `input` is the parsed JSON of the arguments; empty arguments are an empty object. */
export type ToolCall = Placed & { id: string; name: string; input: Json };

/**
 * One message that is not an instruction. `blocks` are the `content_blocks` of an earlier answer. `toolName` is the name of
 * the call that a result belongs to, null if no earlier message has that call.
 */
export type ChatMessage = Placed &
  (
    | { role: 'user'; parts: readonly ContentPart[] }
    | { role: 'assistant'; parts: readonly ContentPart[]; toolCalls: readonly ToolCall[]; blocks: readonly Json[] }
    | { role: 'tool'; parts: readonly ContentPart[]; toolCallId: string; toolName: string | null }
  );

export type ChatMessages = {
  /** The texts of system and developer messages, in order. */
  system: readonly (Placed & { text: string })[];
  messages: readonly ChatMessage[];
  /** Every `messages[1].name` and `….image_url.detail` in the request, which few providers support. */
  hints: readonly string[];
};

/**
 * Reads the messages of a chat request that the contract has checked (libs/contracts/calls/chat.ts). The deprecated
 * `function_call` and `function` role become a tool call and its result, with an ID that both share. Throws
 * invalid_request, naming the param, for input that no provider accepts: arguments that are not a JSON object, an
 * invalid `data:` URL, a part without data.
 */
export function readChatMessages(list: unknown): ChatMessages {
  const system: (Placed & { text: string })[] = [];
  const messages: ChatMessage[] = [];
  const hints: string[] = [];
  const namesById = new Map<string, string>();
  for (const [index, raw] of toRecords(list).entries()) {
    const param = `messages[${index}]`;
    const role = asText(raw['role']) ?? '';
    const parts = readParts(raw['content'], `${param}.content`, hints);
    if (raw['name'] !== undefined && raw['name'] !== null && role !== 'function') hints.push(`${param}.name`);
    switch (role) {
      case 'system':
      case 'developer':
        system.push(...parts.map((part) => ({ ...instructionOf(part), raw: withCacheMark(part.raw, raw) })));
        break;
      case 'user':
        messages.push({ role, parts, param, raw });
        break;
      case 'assistant': {
        const toolCalls = readToolCalls(raw, param);
        for (const { id, name } of toolCalls) namesById.set(id, name);
        messages.push({ role, parts, toolCalls, blocks: toRecords(raw['content_blocks']), param, raw });
        break;
      }
      case 'tool': {
        const toolCallId = asText(raw['tool_call_id']) ?? '';
        messages.push({ role, parts, toolCallId, toolName: namesById.get(toolCallId) ?? null, param, raw });
        break;
      }
      case 'function': {
        const toolName = asText(raw['name']) ?? '';
        const toolCallId = lastFunctionCall(messages, toolName) ?? functionCallId(index);
        messages.push({ role: 'tool', parts, toolCallId, toolName, param, raw });
        break;
      }
      default:
        throw invalid(`${param}.role`, 'expected one of system, developer, user, assistant, tool, function');
    }
  }
  return { system, messages, hints };
}

/** The http URLs of images and files in the messages, for providers that accept only bytes. */
export function mediaUrls({ messages }: Pick<ChatMessages, 'messages'>): string[] {
  return messages.flatMap(({ parts }) =>
    parts.flatMap((part) => {
      if (part.type !== 'image' && part.type !== 'file') return [];
      return part.media.kind === 'url' && /^https?:/i.test(part.media.url) ? [part.media.url] : [];
    }),
  );
}

/** Only white space: models write it before tool calls, and their providers reject it in the next request. */
export const isBlank = (part: ContentPart): boolean => part.type === 'text' && part.text.trim() === '';

/** The texts of the parts, concatenated; parts of other kinds are skipped. */
export const joinText = (parts: readonly ContentPart[]): string =>
  parts.map((part) => (part.type === 'text' || part.type === 'refusal' ? part.text : '')).join('');

/** The error for a part that a provider does not support: dropping it would change the question. */
export const unsupportedPart = ({ param }: ContentPart, provider: string, accepted: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'unsupported_parameter',
    `${provider} does not support '${param}': ${accepted}.`,
    {
      param,
    },
  );

const invalid = (param: string, expected: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${expected}.`, { param });

function instructionOf(part: ContentPart): { text: string; param: string } {
  if (part.type === 'text') return { text: part.text, param: part.param };
  throw invalid(part.param, 'system and developer messages can contain only text');
}

/** A message's `cache_control` applies to each of its parts that does not have one. */
function withCacheMark(part: Json, message: Json): Json {
  const mark = message['cache_control'];
  return mark === undefined || part['cache_control'] !== undefined ? part : { ...part, cache_control: mark };
}

function readParts(content: unknown, param: string, hints: string[]): ContentPart[] {
  if (typeof content === 'string') return content === '' ? [] : [{ type: 'text', text: content, param, raw: {} }];
  return toRecords(content).map((raw, index) => readPart(raw, `${param}[${index}]`, hints));
}

function readPart(raw: Json, param: string, hints: string[]): ContentPart {
  const type = asText(raw['type']) ?? '';
  switch (type) {
    case 'text':
      return { type, text: asText(raw['text']) ?? '', param, raw };
    case 'refusal':
      return { type, text: asText(raw['refusal']) ?? '', param, raw };
    case 'image_url': {
      const { url, detail } = toRecord(raw['image_url']);
      const level = asText(detail) ?? null;
      if (level !== null && level !== 'auto') hints.push(`${param}.image_url.detail`);
      return {
        type: 'image',
        media: readMedia(asText(url) ?? '', `${param}.image_url.url`),
        detail: level,
        param,
        raw,
      };
    }
    case 'input_audio': {
      const { data, format } = toRecord(raw['input_audio']);
      const base64 = asText(data);
      if (!base64) throw invalid(`${param}.input_audio.data`, 'expected the audio in base64');
      return { type: 'audio', base64, format: asText(format) ?? 'wav', param, raw };
    }
    case 'file':
      return readFile(raw, param);
    default:
      return { type: 'unknown', name: type, param, raw };
  }
}

function readFile(raw: Json, param: string): ContentPart {
  const file = toRecord(raw['file']);
  const name = asText(file['filename']) ?? asText(file['file_name']) ?? null;
  const at = (media: Media): ContentPart => ({ type: 'file', media, name, param, raw });
  const data = asText(file['file_data']);
  if (data) {
    if (/^data:/i.test(data)) return at(readMedia(data, `${param}.file.file_data`));
    // Bare base64 does not contain its type. The type is a separate member, or follows from the file name.
    const mediaType = asText(file['mime_type']) ?? (/\.txt$/i.test(name ?? '') ? 'text/plain' : 'application/pdf');
    return at({ kind: 'bytes', mediaType, base64: data });
  }
  const url = asText(file['file_url']);
  if (url) return at(readMedia(url, `${param}.file.file_url`));
  const id = asText(file['file_id']);
  if (id) return at({ kind: 'id', id });
  throw invalid(`${param}.file`, 'expected file_data, file_url or file_id');
}

function readToolCalls(message: Json, param: string): ToolCall[] {
  const calls = toRecords(message['tool_calls']).map((raw, index) => {
    const at = `${param}.tool_calls[${index}]`;
    return readCall(toRecord(raw['function']), asText(raw['id']) ?? '', `${at}.function`, at, raw);
  });
  const legacy = message['function_call'];
  if (calls.length > 0 || legacy === undefined || legacy === null) return calls;
  const at = `${param}.function_call`;
  return [readCall(toRecord(legacy), functionCallId(Number(/\d+/.exec(param)?.[0])), at, at, toRecord(legacy))];
}

function readCall(called: Json, id: string, calledAt: string, param: string, raw: Json): ToolCall {
  const written = asText(called['arguments']) ?? '';
  return { id, name: asText(called['name']) ?? '', input: parseInput(written, `${calledAt}.arguments`), param, raw };
}

function parseInput(text: string, param: string): Json {
  if (text.trim() === '') return {};
  const parsed = parseJson(text);
  if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)) return parsed as Json;
  throw invalid(param, 'expected a JSON object as text, because this provider requires arguments as an object');
}

/** Deprecated calls have no id. One made from the position stays the same over the turns of a conversation. */
const functionCallId = (index: number): string => `call_function_${index}`;

function lastFunctionCall(messages: readonly ChatMessage[], name: string): string | undefined {
  const caller = messages.findLast((message) => message.role === 'assistant');
  return caller?.role === 'assistant' ? caller.toolCalls.findLast((call) => call.name === name)?.id : undefined;
}
