import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import { signerOf } from './models.ts';
import { type Json, asText } from '../turns/json-value.ts';
import { fetchedMedia } from '../turns/media.ts';
import { type ContentPart, type Turn, type TurnRequest, isBlank, unsupportedPart } from '../turns/turn-request.ts';

type Block = Record<string, unknown>;
type Message = { role: 'user' | 'assistant'; content: Block[] };
type State = Pick<Call, 'strict' | 'resources' | 'model'> & { documentNames: Set<string>; dropped: string[] };

/** Every system and developer text, in order. */
export function encodeSystem({ system }: TurnRequest): Block[] | undefined {
  const blocks = system.flatMap(({ text, raw }) => (text === '' ? [] : [{ text }, ...cachePoint(raw)]));
  return blocks.length > 0 ? blocks : undefined;
}

/**
 * The conversation in alternating turns, as Converse requires. Images are sent as bytes: those with http URLs are among
 * the call's resources. Adds the hints that it leaves out to `dropped`. Throws invalid_request if no message is left,
 * or for a part that Converse does not support.
 */
export function encodeMessages({ messages }: TurnRequest, call: Call, dropped: string[]): Message[] {
  const { strict, resources, model } = call;
  const state: State = { strict, resources, model, documentNames: new Set(), dropped };
  const turns: Message[] = [];
  for (const message of messages) {
    const content = encodeMessage(message, state);
    if (content.length === 0) continue;
    const role = message.role === 'assistant' ? 'assistant' : 'user';
    const marked = [...content, ...(content.at(-1)?.['cachePoint'] ? [] : cachePoint(message.raw))];
    const turn = turns.at(-1);
    if (turn?.role === role) turn.content.push(...marked);
    else turns.push({ role, content: marked });
  }
  if (turns.length > 0) return turns;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'messages': Bedrock needs at least one non-empty user message.",
    { param: 'messages' },
  );
}

function encodeMessage(message: Turn, state: State): Block[] {
  switch (message.role) {
    case 'user':
      return message.parts.flatMap((part) => encodePart(part, state));
    case 'assistant':
      return [
        ...encodeSaid(message, state),
        ...message.toolCalls.map(({ id, name, input }) => ({ toolUse: { toolUseId: id, name, input } })),
      ];
    case 'tool': {
      const content = message.parts.flatMap((part) => encodePart(part, state)).filter((block) => !block['cachePoint']);
      const status = message.isError ? { status: 'error' } : {};
      return [{ toolResult: { toolUseId: message.toolCallId, content, ...status } }];
    }
  }
}

/** The assistant's content: the blocks of its earlier answer, including reasoning, or its text. */
function encodeSaid({ blocks, parts, param }: Extract<Turn, { role: 'assistant' }>, state: State): Block[] {
  if (state.strict || blocks.length === 0) {
    if (blocks.length > 0) state.dropped.push(`${param}.content_blocks`);
    return parts.filter((part) => !isBlank(part)).flatMap((part) => encodePart(part, state));
  }
  const signer = signerOf(state.model);
  const isOwn = (block: Json): boolean => block['signer'] === undefined || block['signer'] === signer;
  return blocks.flatMap((block, index): Block[] => {
    switch (block['type']) {
      case 'text': {
        const text = asText(block['text']) ?? '';
        return text.trim() === '' ? [] : [{ text }, ...cachePoint(block)];
      }
      case 'thinking': {
        if (!isOwn(block)) break;
        const signature = asText(block['signature']);
        const reasoningText = { text: asText(block['thinking']) ?? '', ...(signature ? { signature } : {}) };
        return [{ reasoningContent: { reasoningText } }];
      }
      case 'redacted_thinking':
        if (!isOwn(block)) break;
        return [{ reasoningContent: { redactedContent: block['data'] } }];
      case 'tool_use': // These are sent as tool_calls.
        return [];
    }
    state.dropped.push(`${param}.content_blocks[${index}]`);
    return [];
  });
}

/** Formats by media type (AWS API reference: ImageBlock, DocumentBlock, VideoBlock). */
const formats: Readonly<Record<string, readonly ['image' | 'document' | 'video', string]>> = {
  'image/png': ['image', 'png'],
  'image/jpeg': ['image', 'jpeg'],
  'image/gif': ['image', 'gif'],
  'image/webp': ['image', 'webp'],
  'application/pdf': ['document', 'pdf'],
  'text/csv': ['document', 'csv'],
  'application/msword': ['document', 'doc'],
  'application/vnd.openxmlformats-officedocument.wordprocessingml.document': ['document', 'docx'],
  'application/vnd.ms-excel': ['document', 'xls'],
  'application/vnd.openxmlformats-officedocument.spreadsheetml.sheet': ['document', 'xlsx'],
  'text/html': ['document', 'html'],
  'text/plain': ['document', 'txt'],
  'text/markdown': ['document', 'md'],
  'video/mp4': ['video', 'mp4'],
  'video/quicktime': ['video', 'mov'],
  'video/x-matroska': ['video', 'mkv'],
  'video/webm': ['video', 'webm'],
};

function encodePart(part: ContentPart, state: State): Block[] {
  switch (part.type) {
    case 'text':
    case 'refusal':
      return part.text === '' ? [] : [{ text: part.text }, ...cachePoint(part.raw)];
    case 'image':
    case 'file':
      return [encodeMedia(part, state), ...cachePoint(part.raw)];
    case 'audio':
    case 'unknown':
      throw unsupportedPart(part, 'Bedrock', 'only text, images, documents and videos are supported');
  }
}

function encodeMedia(part: Extract<ContentPart, { type: 'image' | 'file' }>, state: State): Block {
  const { media } = part;
  const fetched = media.kind === 'url' ? state.resources.get(media.url) : undefined;
  const bytes = media.kind === 'bytes' ? media : fetched && fetchedMedia(fetched);
  if (!bytes) {
    throw unsupportedPart(
      part,
      'Bedrock',
      'only bytes are supported. Send a data: URL or an http address to fetch them from',
    );
  }
  const format = Object.hasOwn(formats, bytes.mediaType) ? formats[bytes.mediaType] : undefined;
  if (format === undefined) {
    throw unsupportedPart(part, 'Bedrock', `its media type must be one of ${Object.keys(formats).join(', ')}`);
  }
  const [kind, name] = format;
  const content = { format: name, source: { bytes: bytes.base64 } };
  if (kind !== 'document') return { [kind]: content };
  return { document: { ...content, name: documentName(part.type === 'file' ? part.name : null, state.documentNames) } };
}

/** The API allows letters, digits, single spaces, hyphens and brackets, and each name only once per request. */
function documentName(name: string | null, taken: Set<string>): string {
  const base =
    (name ?? '')
      .replace(/\.[a-z0-9]{1,5}$/i, '')
      .replaceAll(/[^a-z0-9 ()[\]-]+/gi, ' ')
      .replaceAll(/\s+/g, ' ')
      .trim()
      .slice(0, 180) || 'document';
  let candidate = base;
  for (let number = 2; taken.has(candidate); number += 1) candidate = `${base} ${number}`;
  taken.add(candidate);
  return candidate;
}

/** Prompts are cached up to here, if the client set Anthropic's `cache_control`. */
export function cachePoint(raw: Json): Block[] {
  const mark = raw['cache_control'];
  return mark === undefined || mark === null ? [] : [{ cachePoint: { type: 'default' } }];
}
