import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import { toGeminiPart } from './media.ts';
import { checksSignatures, foreignSignature, unpackCallId } from './thought-signature.ts';
import { type Json, asText, parseJson, toRecord } from '../turns/json-value.ts';
import { readMedia } from '../turns/media.ts';
import { type ContentPart, type Turn, type TurnRequest, joinText } from '../turns/turn-request.ts';

type Content = { role: 'user' | 'model'; parts: Json[] };
type Assistant = Extract<Turn, { role: 'assistant' }>;
type ToolResult = Extract<Turn, { role: 'tool' }>;

/**
 * The conversation in Gemini's format: the instructions of all system and developer messages, in order, and contents
 * with alternating roles. All results of one turn are in one content, in the order of their calls. Throws
 * invalid_request, naming the param, for a result whose call is not in the conversation, and like `toGeminiPart`.
 */
export function toContents(request: TurnRequest, call: Call): { systemInstruction?: Json; contents: Content[] } {
  const instructions = request.system.map(({ text }) => ({ text }));
  const contents: Content[] = [];
  const add = (role: Content['role'], parts: readonly Json[]): void => {
    const last = contents.at(-1);
    if (last?.role === role) last.parts.push(...parts);
    else if (parts.length > 0) contents.push({ role, parts: [...parts] });
  };

  let positions = new Map<string, number>();
  const { messages } = request;
  for (let index = 0; index < messages.length; index += 1) {
    const message = messages[index];
    if (message?.role === 'user') add('user', userParts(message.parts, call));
    else if (message?.role === 'assistant') {
      positions = new Map(message.toolCalls.map(({ id }, position) => [id, position]));
      add('model', assistantParts(message, request.model, call));
    } else if (message?.role === 'tool') {
      const results = messages.slice(index, endOfResults(messages, index)) as ToolResult[];
      index += results.length - 1;
      const order = ({ toolCallId }: ToolResult): number => positions.get(toolCallId) ?? positions.size;
      add(
        'user',
        resultParts(
          results.toSorted((a, b) => order(a) - order(b)),
          call,
        ),
      );
    }
  }
  // Gemini requires contents. If there are only instructions, they are the question.
  if (contents.length === 0) return { contents: [{ role: 'user', parts: instructions }] };
  return { ...(instructions.length > 0 ? { systemInstruction: { parts: instructions } } : {}), contents };
}

function endOfResults(messages: readonly Turn[], start: number): number {
  const end = messages.findIndex((message, index) => index > start && message.role !== 'tool');
  return end === -1 ? messages.length : end;
}

/** A message without content is still a turn, so it gets an empty text. */
function userParts(parts: readonly ContentPart[], call: Call): Json[] {
  return parts.length === 0 ? [{ text: '' }] : parts.map((part) => toGeminiPart(part, call));
}

function assistantParts({ parts, blocks, toolCalls, param }: Assistant, model: string, call: Call): Json[] {
  const shown = blockParts(blocks, param);
  const said = shown.length > 0 ? shown : parts.map((part) => toGeminiPart(part, call));
  const calls = toolCalls.map(({ id, name, input, raw }) => {
    const { ownId, signature } = unpackCallId(id);
    return {
      functionCall: { ...(ownId === undefined ? {} : { id: ownId }), name, args: input },
      signature: signature ?? signatureBeside(raw),
    };
  });
  const isForeign = calls.every(({ signature }) => signature === undefined) && checksSignatures(model);
  return [
    ...said,
    ...calls.map(({ functionCall, signature }, index) => {
      // Only the first of several parallel calls has a signature, which covers all of them.
      const sent = signature ?? (isForeign && index === 0 ? foreignSignature : undefined);
      return { functionCall, ...(sent === undefined ? {} : { thoughtSignature: sent }) };
    }),
  ];
}

/**
 * Reads `function.thought_signature`, where the gateway writes it, or `extra_content`, where Google's OpenAI endpoint
 * does.
 */
function signatureBeside(toolCall: Json): string | undefined {
  const google = toRecord(toRecord(toolCall['extra_content'])['google']);
  return asText(toRecord(toolCall['function'])['thought_signature']) ?? asText(google['thought_signature']);
}

/**
 * The text and images of an earlier answer's `content_blocks`, with their signatures. Thoughts are left out: Gemini's
 * are summaries that it does not want back, and it rejects the signatures of other providers' thoughts.
 */
function blockParts(blocks: readonly Json[], param: string): Json[] {
  return blocks.flatMap((block, index): Json[] => {
    const { type, text, image_url: image, signature } = block;
    const signed = typeof signature === 'string' ? { thoughtSignature: signature } : {};
    if (type === 'text' && typeof text === 'string') return [{ text, ...signed }];
    if (type !== 'image_url') return [];
    const media = readMedia(asText(toRecord(image)['url']) ?? '', `${param}.content_blocks[${index}].image_url.url`);
    if (media.kind !== 'bytes') return [];
    return [{ inlineData: { mimeType: media.mediaType, data: media.base64 }, ...signed }];
  });
}

/** Results first, then other content of the tools (images), which cannot be part of a result. */
function resultParts(results: readonly ToolResult[], call: Call): Json[] {
  const answers = results.map(({ toolName, toolCallId, parts, param }) => {
    if (toolName === null) {
      throw new GatewayError(
        'invalid_request',
        'invalid_value',
        `Invalid '${param}.tool_call_id': no earlier assistant message contains this call, and Gemini needs its name.`,
        { param: `${param}.tool_call_id` },
      );
    }
    const { ownId } = unpackCallId(toolCallId);
    const response = toResponse(joinText(parts));
    return { functionResponse: { ...(ownId === undefined ? {} : { id: ownId }), name: toolName, response } };
  });
  const rest = results.flatMap(({ parts }) => parts.filter(({ type }) => type !== 'text' && type !== 'refusal'));
  return [...answers, ...rest.map((part) => toGeminiPart(part, call))];
}

/** Gemini requires an object; other results become its `output` member (ai.google.dev/api/caching#FunctionResponse). */
function toResponse(text: string): Json {
  // A number that JavaScript would round remains text.
  if (text.trimStart().startsWith('{') && !/\d{16}/.test(text)) {
    const parsed = parseJson(text);
    if (parsed !== undefined) return toRecord(parsed);
  }
  return { output: text };
}
