import { GatewayError } from '#libs/kernel/errors.ts';
import { claudeSigner } from '../anthropic/decode.ts';
import { type Json, asText, toRecord, toRecords } from '../turns/json-value.ts';
import { type Media, readMedia } from '../turns/media.ts';
import { readSignature } from '../turns/signatures.ts';
import { type ContentPart, type Conversation, type ToolCall, type Turn, unsupported } from '../turns/turn-request.ts';

type Instruction = Conversation['system'][number];

/**
 * Reads `system` and `messages` of a request that the contract has checked (libs/contracts/calls/messages.ts). Each result in a
 * user's message becomes a separate turn; instructions in the middle of the conversation join the others. Throws
 * invalid_request, naming the param, for input that no provider accepts, and `unsupported_parameter` for files that are
 * stored at Anthropic.
 */
export function decodeConversation({ system, messages: list }: Json): Conversation {
  const instructions = readInstructions(system, 'system');
  const messages: Turn[] = [];
  const hints: string[] = [];
  const namesById = new Map<string, string>();
  for (const [index, raw] of toRecords(list).entries()) {
    const param = `messages[${index}]`;
    switch (raw['role']) {
      case 'user':
        messages.push(...readUser(raw, param, { namesById, hints }));
        break;
      case 'assistant': {
        const turn = readAssistant(raw, param, hints);
        for (const { id, name } of turn.toolCalls) namesById.set(id, name);
        messages.push(turn);
        break;
      }
      case 'system':
        instructions.push(...readInstructions(raw['content'], `${param}.content`));
        break;
      default:
        throw invalid(`${param}.role`, 'expected one of user, assistant, system');
    }
  }
  return { system: instructions, messages, hints };
}

const invalid = (param: string, expected: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${expected}.`, { param });

/** A text or a list of blocks as blocks, each with its location. */
function readBlocks(content: unknown, param: string): { block: Json; param: string }[] {
  if (typeof content === 'string') return content === '' ? [] : [{ block: { type: 'text', text: content }, param }];
  return toRecords(content).map((block, index) => ({ block, param: `${param}[${index}]` }));
}

function readInstructions(content: unknown, at: string): Instruction[] {
  return readBlocks(content, at).map(({ block, param }) => {
    if (block['type'] !== 'text') throw invalid(param, 'instructions can contain only text blocks');
    return { text: asText(block['text']) ?? '', param, raw: block };
  });
}

/** The content between two results is one turn, so that everything keeps its order. */
function readUser(
  raw: Json,
  param: string,
  { namesById, hints }: { namesById: ReadonlyMap<string, string>; hints: string[] },
): Turn[] {
  const turns: Turn[] = [];
  let parts: ContentPart[] = [];
  const endParts = (): void => {
    if (parts.length > 0) turns.push({ role: 'user', parts, param, raw: {} });
    parts = [];
  };
  for (const { block, param: at } of readBlocks(raw['content'], `${param}.content`)) {
    if (block['type'] !== 'tool_result') {
      parts.push(...readPart(block, at, hints));
      continue;
    }
    endParts();
    const toolCallId = asText(block['tool_use_id']) ?? '';
    turns.push({
      role: 'tool',
      parts: readBlocks(block['content'], `${at}.content`).flatMap((inner) =>
        readPart(inner.block, inner.param, hints),
      ),
      toolCallId,
      toolName: namesById.get(toolCallId) ?? null,
      isError: block['is_error'] === true,
      param: at,
      raw: block,
    });
  }
  endParts();
  return turns;
}

function readAssistant(raw: Json, param: string, hints: string[]): Extract<Turn, { role: 'assistant' }> {
  const parts: ContentPart[] = [];
  const blocks: Json[] = [];
  const toolCalls: ToolCall[] = [];
  for (const { block, param: at } of readBlocks(raw['content'], `${param}.content`)) {
    switch (block['type']) {
      case 'text':
        parts.push(...readPart(block, at, hints));
        blocks.push(block);
        break;
      case 'thinking':
        blocks.push({ ...block, ...readSignature(claudeSigner, asText(block['signature']) ?? '') });
        break;
      case 'redacted_thinking': {
        const { signer, signature: data } = readSignature(claudeSigner, asText(block['data']) ?? '');
        blocks.push({ ...block, signer, data });
        break;
      }
      case 'tool_use': {
        const input = toRecord(block['input']);
        const called = { id: asText(block['id']) ?? '', name: asText(block['name']) ?? '', input };
        toolCalls.push({ ...called, written: JSON.stringify(input), param: at, raw: block });
        break;
      }
      case 'image': {
        const { media } = readImage(block, at);
        if (media.kind !== 'bytes') throw invalid(at, 'an image of an earlier answer must be sent as base64');
        const url = `data:${media.mediaType};base64,${media.base64}`;
        blocks.push({ type: 'image_url', image_url: { url } });
        break;
      }
      default: // Searches and code that Anthropic ran: only it can read their results, and the answer's text has the rest.
        hints.push(at);
    }
  }
  return { role: 'assistant', parts, toolCalls, blocks, param, raw: {} };
}

function readPart(block: Json, param: string, hints: string[]): ContentPart[] {
  const type = asText(block['type']) ?? '';
  if (type === 'text') return [{ type, text: asText(block['text']) ?? '', param, raw: block }];
  if (type === 'image') return [readImage(block, param)];
  if (type === 'document') return readDocument(block, param, hints);
  return [{ type: 'unknown', name: type, param, raw: block }];
}

function readImage(block: Json, param: string): Extract<ContentPart, { type: 'image' }> {
  return {
    type: 'image',
    media: readSource(toRecord(block['source']), `${param}.source`),
    detail: null,
    param,
    raw: block,
  };
}

function readDocument(block: Json, param: string, hints: string[]): ContentPart[] {
  const source = toRecord(block['source']);
  if (toRecord(block['citations'])['enabled'] === true) hints.push(`${param}.citations`);
  if (asText(block['context'])) hints.push(`${param}.context`);
  if (source['type'] === 'content') {
    const blocks = readBlocks(source['content'], `${param}.source.content`);
    return blocks.flatMap((inner) => readPart(inner.block, inner.param, hints));
  }
  const media = readSource(source, `${param}.source`);
  return [{ type: 'file', media, name: asText(block['title']) ?? null, param, raw: block }];
}

/** Where an image or a document is (platform.claude.com/docs, "Vision", "PDF support"). */
function readSource(source: Json, param: string): Media {
  switch (source['type']) {
    case 'base64': {
      const mediaType = asText(source['media_type']) ?? '';
      return readMedia(`data:${mediaType};base64,${asText(source['data']) ?? ''}`, param);
    }
    case 'text': {
      const base64 = Buffer.from(asText(source['data']) ?? '').toString('base64');
      return { kind: 'bytes', mediaType: 'text/plain', base64 };
    }
    case 'url':
      return readMedia(asText(source['url']) ?? '', `${param}.url`);
    case 'file':
      throw unsupported(param, "only Anthropic has the file. Send its content as 'base64', or a 'url'");
    default:
      throw invalid(`${param}.type`, 'expected one of base64, text, url, content');
  }
}
