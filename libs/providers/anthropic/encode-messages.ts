import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import { claudeSigner } from './decode.ts';
import { type Json, asText } from '../turns/json-value.ts';
import { type Media, fetchedMedia } from '../turns/media.ts';
import { type ContentPart, type Turn, type TurnRequest, isBlank, unsupportedPart } from '../turns/turn-request.ts';

type Block = Record<string, unknown>;
type Message = { role: 'user' | 'assistant'; content: Block[] };

/** `content_blocks` are sent back only if answers can have them; fetched files are sent as bytes. */
type Options = Pick<Call, 'strict' | 'resources'>;

/** Every system and developer text, in order. */
export function encodeSystem({ system }: TurnRequest): Block[] | undefined {
  const blocks = system.flatMap(({ text, raw }) => (text === '' ? [] : [{ type: 'text', text, ...cacheMark(raw) }]));
  return blocks.length > 0 ? blocks : undefined;
}

/**
 * The conversation in Anthropic's turns: consecutive messages of one role become one turn, and the results of a turn's
 * tool calls come first in the user's turn, as the API requires. Adds the hints that it leaves out to `dropped`. Throws
 * invalid_request if no message is left, or for a part that Claude does not support (audio).
 */
export function encodeMessages({ messages }: TurnRequest, options: Options, dropped: string[]): Message[] {
  const turns: Message[] = [];
  for (const message of messages) {
    const content = encodeMessage(message, options, dropped);
    const last = content.at(-1);
    if (last === undefined) continue; // The API refuses a turn without content.
    // A whole message's `cache_control` belongs to its last block; thinking blocks cannot have one.
    if (last['cache_control'] === undefined && !isThinking(last)) Object.assign(last, cacheMark(message.raw));
    const role = message.role === 'assistant' ? 'assistant' : 'user';
    const turn = turns.at(-1);
    if (turn?.role === role) turn.content.push(...content);
    else turns.push({ role, content });
  }
  if (turns.length === 0) {
    throw new GatewayError(
      'invalid_request',
      'invalid_value',
      "Invalid 'messages': Claude needs at least one non-empty user message.",
      { param: 'messages' },
    );
  }
  for (const turn of turns) if (turn.role === 'user') turn.content.sort((a, b) => rankOf(a) - rankOf(b));
  return turns;
}

const isThinking = ({ type }: Block): boolean => type === 'thinking' || type === 'redacted_thinking';

const rankOf = (block: Block): number => (block['type'] === 'tool_result' ? 0 : 1);

function encodeMessage(message: Turn, options: Options, dropped: string[]): Block[] {
  const { resources } = options;
  switch (message.role) {
    case 'user':
      return message.parts.flatMap((part) => encodePart(part, resources));
    case 'assistant':
      return [
        ...encodeSaid(message, options, dropped),
        ...message.toolCalls.map(({ id, name, input, raw }) => ({
          type: 'tool_use',
          id,
          name,
          input,
          ...cacheMark(raw),
        })),
      ];
    case 'tool': {
      const content = message.parts.flatMap((part) => encodePart(part, resources));
      return [
        {
          type: 'tool_result',
          tool_use_id: message.toolCallId,
          ...(content.length > 0 ? { content } : {}),
          ...(message.isError ? { is_error: true } : {}),
        },
      ];
    }
  }
}

/** The assistant's content: the blocks of its earlier answer, including signed thinking, or its text. */
function encodeSaid(
  { blocks, parts, param }: Extract<Turn, { role: 'assistant' }>,
  { strict, resources }: Options,
  dropped: string[],
): Block[] {
  if (strict || blocks.length === 0) {
    if (blocks.length > 0) dropped.push(`${param}.content_blocks`);
    return parts.filter((part) => !isBlank(part)).flatMap((part) => encodePart(part, resources));
  }
  return blocks.flatMap((block, index): Block[] => {
    switch (block['type']) {
      case 'text': {
        const text = asText(block['text']) ?? '';
        return text.trim() === '' ? [] : [{ type: 'text', text, ...cacheMark(block) }];
      }
      case 'thinking':
        // Thinking without a signature is from another model, and the API rejects it.
        if (asText(block['signature']) && isOwn(block)) return [withoutSigner(block)];
        break;
      case 'redacted_thinking':
        if (isOwn(block)) return [withoutSigner(block)];
        break;
      case 'tool_use': // These are sent as tool_calls.
        return [];
    }
    dropped.push(`${param}.content_blocks[${index}]`);
    return [];
  });
}

function encodePart(part: ContentPart, resources: Options['resources']): Block[] {
  const mark = cacheMark(part.raw);
  switch (part.type) {
    case 'text':
    case 'refusal':
      return part.text === '' ? [] : [{ type: 'text', text: part.text, ...mark }];
    case 'image':
      return [{ ...encodeMedia(part, part.media, resources, 'image'), ...mark }];
    case 'file': {
      const title = part.name === null ? {} : { title: part.name };
      const block = encodeMedia(part, part.media, resources, 'document');
      return [{ ...block, ...(block['type'] === 'document' ? title : {}), ...mark }];
    }
    case 'audio':
    case 'unknown':
      throw unsupportedPart(part, 'Claude', 'only text, images and documents are supported');
  }
}

/** Whether Claude signed it. The signer of a block that a client of chat completions sends back is unknown. */
const isOwn = ({ signer }: Json): boolean => signer === undefined || signer === claudeSigner;

const withoutSigner = ({ signer: _signer, ...block }: Json): Block => block;

const imageTypes = new Set(['image/jpeg', 'image/png', 'image/gif', 'image/webp']);

/** For a URL, the part determines the kind; for bytes, the media type decides. */
function encodeMedia(
  part: ContentPart,
  media: Media,
  resources: Options['resources'],
  kind: 'image' | 'document',
): Block {
  if (media.kind === 'id') return { type: kind, source: { type: 'file', file_id: media.id } };
  if (media.kind === 'url') {
    const fetched = resources.get(media.url);
    if (fetched) return encodeMedia(part, fetchedMedia(fetched), resources, kind);
    if (!/^https?:/i.test(media.url)) throw unsupportedPart(part, 'Claude', 'its URL must be http, https or data');
    return { type: kind, source: { type: 'url', url: media.url } };
  }
  const { mediaType, base64 } = media;
  if (imageTypes.has(mediaType)) {
    return { type: 'image', source: { type: 'base64', media_type: mediaType, data: base64 } };
  }
  if (mediaType === 'application/pdf') {
    return { type: 'document', source: { type: 'base64', media_type: mediaType, data: base64 } };
  }
  if (mediaType === 'text/plain') {
    const data = Buffer.from(base64, 'base64').toString('utf8');
    return { type: 'document', source: { type: 'text', media_type: mediaType, data } };
  }
  throw unsupportedPart(part, 'Claude', 'only JPEG, PNG, GIF and WebP images, PDF and plain text are supported');
}

/** Anthropic's `cache_control` for prompt caching, which clients set on messages, parts and tools. */
export function cacheMark(raw: Json): Block {
  const mark = raw['cache_control'];
  return mark === undefined || mark === null ? {} : { cache_control: mark };
}
