import { createHash } from 'node:crypto';
import type { Call } from '../provider.ts';
import { type Json, asText, compact } from '../turns/json-value.ts';
import { type Media, fetchedMedia } from '../turns/media.ts';
import {
  type ContentPart,
  type ToolChoice,
  type Turn,
  type TurnRequest,
  droppedParams,
  joinText,
  unsupportedPart,
} from '../turns/turn-request.ts';

const taken = new Set([
  'max_tokens',
  'max_completion_tokens',
  'temperature',
  'top_p',
  'seed',
  'frequency_penalty',
  'presence_penalty',
  'stop',
  'tools',
  'tool_choice',
  'parallel_tool_calls',
  'response_format',
  'reasoning_effort',
  'top_logprobs',
  'user',
]);

/**
 * A request of another dialect as one of chat completions. `dropped` lists what was left out: hints that not every server
 * knows, and reasoning that the provider did not write itself or does not need any more. Throws invalid_request for a part
 * without an equivalent.
 */
export function encodeCompletionRequest(
  request: TurnRequest,
  { stream, resources }: Pick<Call, 'stream' | 'resources'>,
  signer: string,
): { body: Json; dropped: string[] } {
  // The detail of images is sent.
  const hints = request.hints.filter((hint) => !hint.endsWith('.detail'));
  const dropped = [...hints, ...droppedParams(request.body, taken)];
  const { responseFormat: format, tools } = request;
  const body = compact({
    model: request.model,
    messages: [
      ...request.system.map(({ text }) => ({ role: 'system', content: text })),
      ...encodeTurns(request.messages, { resources, signer, dropped }),
    ],
    tools:
      tools.length === 0
        ? undefined
        : tools.map(({ name, description, parameters, strict }) => ({
            type: 'function',
            function: compact({ name, description, parameters, strict }),
          })),
    tool_choice: tools.length === 0 ? undefined : encodeChoice(request.toolChoice),
    parallel_tool_calls: tools.length === 0 ? undefined : request.parallelToolCalls,
    response_format:
      format?.type === 'json_schema'
        ? {
            type: 'json_schema',
            json_schema: compact({
              name: format.name === '' ? 'answer' : format.name,
              description: format.description,
              schema: format.schema,
              strict: format.strict,
            }),
          }
        : format,
    stop: request.stop.length > 0 ? request.stop : undefined,
    max_completion_tokens: request.maxTokens,
    temperature: request.temperature,
    top_p: request.topP,
    seed: request.seed,
    frequency_penalty: request.frequencyPenalty,
    presence_penalty: request.presencePenalty,
    n: request.n,
    logprobs: request.logprobs ? true : undefined,
    top_logprobs: request.topLogprobs,
    user: request.user === undefined ? undefined : shortenUser(request.user),
    reasoning_effort: request.reasoningEffort,
    ...(stream ? { stream: true } : {}),
  });
  return { body, dropped: [...new Set(dropped)] };
}

const userLengthMax = 64;

/** OpenAI refuses a longer name of a user. Its hash still tells users apart. */
const shortenUser = (user: string): string =>
  user.length <= userLengthMax ? user : createHash('sha256').update(user).digest('hex');

/** The URLs of documents, whose content has to be sent: chat completions have URLs only for images. */
export const documentUrls = ({ messages }: TurnRequest): string[] =>
  messages.flatMap(({ parts }) =>
    parts.flatMap((part) => (part.type === 'file' && part.media.kind === 'url' ? [part.media.url] : [])),
  );

const encodeChoice = (choice: ToolChoice | undefined): unknown =>
  typeof choice === 'object' ? { type: 'function', function: { name: choice.name } } : choice;

type State = Pick<Call, 'resources'> & { signer: string; dropped: string[] };

function encodeTurns(turns: readonly Turn[], state: State): Json[] {
  const messages: Json[] = [];
  // Only in an unfinished loop of tool calls does a model need its reasoning.
  // A message that follows results does not end it.
  const loopStart = turns.findLastIndex(({ role }, at) => role === 'user' && turns[at - 1]?.role !== 'tool');
  /** Images and files of tool results, which a message of the tool cannot contain. They follow the last result. */
  let beside: Json[] = [];
  for (const [index, turn] of turns.entries()) {
    if (turn.role === 'tool') {
      const isText = (part: ContentPart): boolean => part.type === 'text' || part.type === 'refusal';
      if (turn.isError) state.dropped.push(`${turn.param}.is_error`);
      messages.push({ role: 'tool', tool_call_id: turn.toolCallId, content: joinText(turn.parts) });
      beside.push(...turn.parts.filter((part) => !isText(part)).map((part) => encodePart(part, state)));
      continue;
    }
    if (turn.role === 'user') {
      const parts = [...beside, ...turn.parts.map((part) => encodePart(part, state))];
      beside = [];
      messages.push({ role: 'user', content: plainText(turn.parts, parts) });
      continue;
    }
    if (beside.length > 0) messages.push({ role: 'user', content: beside });
    beside = [];
    messages.push(encodeAssistant(turn, index > loopStart, state));
  }
  if (beside.length > 0) messages.push({ role: 'user', content: beside });
  return messages;
}

/** Older servers accept only a text where there is nothing else. */
const plainText = (parts: readonly ContentPart[], encoded: readonly Json[]): unknown =>
  encoded.length === parts.length && parts.every(({ type }) => type === 'text') ? joinText(parts) : encoded;

function encodeAssistant(
  { parts, toolCalls, blocks }: Extract<Turn, { role: 'assistant' }>,
  isOpen: boolean,
  { signer, dropped }: State,
): Json {
  const text = joinText(parts);
  const thoughts = blocks.filter(({ type }) => type === 'thinking' || type === 'redacted_thinking');
  const kept = isOpen ? thoughts.filter((block) => block['signer'] === signer) : [];
  if (kept.length < thoughts.length) dropped.push('reasoning');
  const reasoning = kept.map(({ thinking }) => asText(thinking) ?? '').join('');
  return compact({
    role: 'assistant',
    content: text === '' && toolCalls.length > 0 ? null : text,
    reasoning_content: reasoning === '' ? undefined : reasoning,
    tool_calls:
      toolCalls.length === 0
        ? undefined
        : toolCalls.map(({ id, name, written }) => ({
            id,
            type: 'function',
            function: { name, arguments: written.trim() === '' ? '{}' : written },
          })),
  });
}

function encodePart(part: ContentPart, { resources }: State): Json {
  switch (part.type) {
    case 'text':
      return { type: 'text', text: part.text };
    case 'refusal':
      return { type: 'refusal', refusal: part.text };
    case 'audio':
      return { type: 'input_audio', input_audio: { data: part.base64, format: part.format } };
    case 'image': {
      if (part.media.kind === 'id') break;
      const url = part.media.kind === 'url' ? part.media.url : dataUrl(part.media);
      return { type: 'image_url', image_url: { url, ...(part.detail === null ? {} : { detail: part.detail }) } };
    }
    case 'file':
      return encodeFile(part, resources);
    case 'unknown':
      break;
  }
  throw unsupportedPart(part, 'This provider', 'only text, images, audio and documents are supported');
}

function encodeFile(part: Extract<ContentPart, { type: 'file' }>, resources: State['resources']): Json {
  const { media, name } = part;
  if (media.kind === 'id') return { type: 'file', file: { file_id: media.id } };
  const fetched = media.kind === 'url' ? resources.get(media.url) : undefined;
  const bytes = media.kind === 'bytes' ? media : fetched && fetchedMedia(fetched);
  if (!bytes) throw unsupportedPart(part, 'This provider', 'a document must be sent as bytes');
  if (bytes.mediaType.startsWith('text/')) {
    return { type: 'text', text: Buffer.from(bytes.base64, 'base64').toString() };
  }
  if (bytes.mediaType.startsWith('image/')) return { type: 'image_url', image_url: { url: dataUrl(bytes) } };
  return { type: 'file', file: { filename: name ?? 'document.pdf', file_data: dataUrl(bytes) } };
}

const dataUrl = ({ mediaType, base64 }: Extract<Media, { kind: 'bytes' }>): string =>
  `data:${mediaType};base64,${base64}`;
