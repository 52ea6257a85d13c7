import { GatewayError } from '#libs/kernel/errors.ts';
import { type Json, asText, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { type Media, readMedia } from '../turns/media.ts';
import type { ContentPart, Conversation, ToolCall, Turn } from '../turns/turn-request.ts';

/**
 * Reads the messages of a chat request that the contract has checked (libs/contracts/calls/chat.ts). The deprecated
 * `function_call` and `function` role become a tool call and its result, with an ID that both share. Throws
 * invalid_request, naming the param, for input that no provider accepts: arguments that are not a JSON object, an
 * invalid `data:` URL, a part without data.
 */
export function readChatMessages(list: unknown): Conversation {
  const system: Conversation['system'][number][] = [];
  const messages: Turn[] = [];
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
        const isError = raw['is_error'] === true;
        messages.push({ role, parts, toolCallId, toolName: namesById.get(toolCallId) ?? null, isError, param, raw });
        break;
      }
      case 'function': {
        const toolName = asText(raw['name']) ?? '';
        const toolCallId = lastFunctionCall(messages, toolName) ?? functionCallId(index);
        messages.push({ role: 'tool', parts, toolCallId, toolName, isError: false, param, raw });
        break;
      }
      default:
        throw invalid(`${param}.role`, 'expected one of system, developer, user, assistant, tool, function');
    }
  }
  return { system, messages, hints };
}

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
  const input = parseInput(written, `${calledAt}.arguments`);
  return { id, name: asText(called['name']) ?? '', input, written, param, raw };
}

/** A tool call's arguments. Throws invalid_request, naming the param, for a text that is not a JSON object. */
export function parseInput(text: string, param: string): Json {
  if (text.trim() === '') return {};
  const parsed = parseJson(text);
  if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)) return parsed as Json;
  throw invalid(param, 'expected a JSON object as text, because this provider requires arguments as an object');
}

/** Deprecated calls have no id. One made from the position stays the same over the turns of a conversation. */
const functionCallId = (index: number): string => `call_function_${index}`;

function lastFunctionCall(messages: readonly Turn[], name: string): string | undefined {
  const caller = messages.findLast((message) => message.role === 'assistant');
  return caller?.role === 'assistant' ? caller.toolCalls.findLast((call) => call.name === name)?.id : undefined;
}
