import { GatewayError } from '#libs/kernel/errors.ts';
import { geminiSigner } from '../gemini/decode.ts';
import { type Json, asText, compact, toRecord } from '../turns/json-value.ts';
import { type Media, readMedia } from '../turns/media.ts';
import { type ContentPart, type Conversation, type ToolCall, type Turn, unsupported } from '../turns/turn-request.ts';
import { listOf, readMember } from './member.ts';
import { readPartSignature } from './part-signature.ts';

type Part = { raw: Json; param: string };
type Assistant = Extract<Turn, { role: 'assistant' }>;
/** The calls of the last answer that have no result yet, and the hints so far. */
type State = { open: { id: string; name: string }[]; hints: string[] };

/**
 * Reads `contents` and `systemInstruction` of a request that the contract has checked
 * (libs/contracts/calls/generate-content.ts; ai.google.dev/api/caching#Content). Calls need no ID there: a result without one
 * belongs to the first open call of its name. Throws invalid_request, naming the param, for input that no provider accepts,
 * and `unsupported_parameter` for files that are stored at Google.
 */
export function decodeContents(body: Json): Conversation {
  const state: State = { open: [], hints: [] };
  const messages: Turn[] = [];
  for (const [index, value] of listOf(body['contents']).entries()) {
    const content = toRecord(value);
    const param = `contents[${index}]`;
    const parts = readPartList(content, param);
    switch (content['role']) {
      case 'model':
        messages.push(readAnswer(parts, param, state));
        break;
      case undefined:
      case null:
      case '':
      case 'user':
      case 'function':
        messages.push(...readUser(parts, param, state));
        break;
      default:
        throw invalid(`${param}.role`, 'expected user or model');
    }
  }
  return { system: readInstructions(body), messages, hints: state.hints };
}

const invalid = (param: string, expected: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${expected}.`, { param });

const readPartList = (content: Json, param: string): Part[] =>
  listOf(content['parts']).map((raw, index) => ({ raw: toRecord(raw), param: `${param}.parts[${index}]` }));

function readInstructions(body: Json): Conversation['system'] {
  const given = readMember(body, 'systemInstruction');
  if (typeof given === 'string') return [{ text: given, param: 'systemInstruction', raw: {} }];
  return readPartList(toRecord(given), 'systemInstruction').map(({ raw, param }) => {
    const text = asText(raw['text']);
    if (text === undefined) throw invalid(param, 'instructions can contain only text');
    return { text, param, raw: {} };
  });
}

/** Results become separate turns. The parts between two of them stay together. */
function readUser(list: readonly Part[], param: string, state: State): Turn[] {
  const turns: Turn[] = [];
  let parts: ContentPart[] = [];
  const endParts = (): void => {
    if (parts.length > 0) turns.push({ role: 'user', parts, param, raw: {} });
    parts = [];
  };
  for (const part of list) {
    const response = readMember(part.raw, 'functionResponse');
    if (response === undefined) {
      parts.push(readPart(part));
      continue;
    }
    endParts();
    turns.push(readResult(toRecord(response), part.param, state));
  }
  endParts();
  return turns.length === 0 ? [{ role: 'user', parts: [], param, raw: {} }] : turns;
}

function readResult(response: Json, param: string, { open }: State): Turn {
  const name = asText(response['name']) ?? '';
  const givenId = asText(response['id']);
  const byId = open.findIndex(({ id }) => id === givenId);
  const position = byId === -1 ? open.findIndex((call) => call.name === name) : byId;
  const call = position === -1 ? undefined : open.splice(position, 1)[0];
  const media = readPartList(response, `${param}.functionResponse`).map(readPart);
  return {
    role: 'tool',
    parts: [{ type: 'text', text: readOutput(response['response']), param, raw: {} }, ...media],
    toolCallId: call?.id ?? givenId ?? '',
    toolName: call?.name ?? name,
    isError: false,
    param,
    raw: {},
  };
}

/** A result that is nothing but a text was wrapped into `output`, because Google requires an object. */
function readOutput(response: unknown): string {
  const { output, ...rest } = toRecord(response);
  if (typeof output === 'string' && Object.keys(rest).length === 0) return output;
  return JSON.stringify(response ?? {});
}

/** The parts of an earlier answer. Texts that follow each other, as the pieces of a stream do, are joined. */
class AnswerReader {
  readonly parts: ContentPart[] = [];
  readonly blocks: Record<string, unknown>[] = [];
  #isOpen = false;

  text(text: string, signature: string | undefined, param: string): void {
    const { signer, signature: own } = readPartSignature(signature ?? '');
    const signed = signature !== undefined && signer === geminiSigner ? { signature: own } : {};
    const last = this.parts.at(-1);
    const block = this.blocks.at(-1);
    if (this.#isOpen && block?.['type'] === 'text' && last?.type === 'text') {
      this.parts[this.parts.length - 1] = { ...last, text: last.text + text };
      Object.assign(block, { text: String(block['text']) + text, ...signed });
    } else if (text !== '' || signature !== undefined) {
      this.parts.push({ type: 'text', text, param, raw: {} });
      this.blocks.push({ type: 'text', text, ...signed });
    }
    this.#isOpen = signature === undefined;
  }

  thought(thinking: string, signature: string | undefined): void {
    const block = this.blocks.at(-1);
    const { data, ...signed } = readPartSignature(signature ?? '');
    if (data !== undefined) {
      this.blocks.push({ type: 'redacted_thinking', data, signer: signed.signer });
      this.#isOpen = false;
      return;
    }
    const added = signature === undefined ? { signer: geminiSigner } : signed;
    if (this.#isOpen && block?.['type'] === 'thinking') {
      Object.assign(block, { thinking: String(block['thinking']) + thinking, ...added });
    } else this.blocks.push({ type: 'thinking', thinking, ...added });
    this.#isOpen = signature === undefined;
  }

  image(media: Extract<Media, { kind: 'bytes' }>, signature: string | undefined): void {
    const url = `data:${media.mediaType};base64,${media.base64}`;
    const { signer, signature: own } = readPartSignature(signature ?? '');
    const signed = signature !== undefined && signer === geminiSigner ? { signature: own } : {};
    this.blocks.push({ type: 'image_url', image_url: { url }, ...signed });
    this.#isOpen = false;
  }

  close(): void {
    this.#isOpen = false;
  }
}

function readAnswer(list: readonly Part[], param: string, state: State): Assistant {
  const reader = new AnswerReader();
  const toolCalls: ToolCall[] = [];
  for (const part of list) {
    const { raw, param: at } = part;
    const signature = asText(readMember(raw, 'thoughtSignature'));
    const called = readMember(raw, 'functionCall');
    const text = asText(raw['text']);
    if (called !== undefined) {
      reader.close();
      // The position makes an ID that stays the same over the turns of the conversation.
      toolCalls.push(readCall(toRecord(called), signature, at, `call_${at.replaceAll(/\D+/g, '_').slice(1, -1)}`));
    } else if (raw['thought'] === true) reader.thought(text ?? '', signature);
    else if (text !== undefined) reader.text(text, signature, at);
    else if (readMember(raw, 'inlineData') !== undefined) {
      const { media } = readBlob(part);
      if (media.kind === 'bytes') reader.image(media, signature);
    } else state.hints.push(at); // Code that Google ran: only its models can read it, and the text has the rest.
  }
  state.open = toolCalls.map(({ id, name }) => ({ id, name }));
  return { role: 'assistant', parts: reader.parts, toolCalls, blocks: reader.blocks, param, raw: {} };
}

function readCall(called: Json, signature: string | undefined, param: string, fallbackId: string): ToolCall {
  const input = toRecord(called['args']);
  const signed = signature === undefined ? undefined : readPartSignature(signature);
  return {
    id: asText(called['id']) || fallbackId,
    name: asText(called['name']) ?? '',
    input,
    written: JSON.stringify(input),
    param,
    raw: signed?.signer === geminiSigner ? { function: { thought_signature: signed.signature } } : {},
  };
}

function readPart(part: Part): ContentPart {
  const { raw, param } = part;
  const text = asText(raw['text']);
  if (text !== undefined) return { type: 'text', text, param, raw: {} };
  if (readMember(raw, 'inlineData') !== undefined) return toContentPart(readBlob(part), param);
  if (readMember(raw, 'fileData') !== undefined) return toContentPart(readFile(part), param);
  const [name = 'an empty part'] = Object.keys(raw);
  return { type: 'unknown', name, param, raw };
}

type Blob = { media: Media; mediaType: string; name: string | null };

function readBlob({ raw, param }: Part): Blob {
  const blob = toRecord(readMember(raw, 'inlineData'));
  const at = `${param}.inlineData`;
  const mediaType = asText(readMember(blob, 'mimeType'));
  if (mediaType === undefined) throw invalid(`${at}.mimeType`, 'expected a media type such as image/png');
  // Python's client writes bytes with the URL-safe alphabet.
  const data = (asText(blob['data']) ?? '').replaceAll('-', '+').replaceAll('_', '/');
  const media = readMedia(`data:${mediaType};base64,${data}`, `${at}.data`);
  return { media, mediaType, name: asText(readMember(blob, 'displayName')) ?? null };
}

const googleFile = /^(?:files\/|https:\/\/generativelanguage\.googleapis\.com\/|gs:)/;

function readFile({ raw, param }: Part): Blob {
  const file = toRecord(readMember(raw, 'fileData'));
  const at = `${param}.fileData.fileUri`;
  const uri = asText(readMember(file, 'fileUri')) ?? '';
  if (googleFile.test(uri)) {
    throw unsupported(at, 'only Google has the file. Send its content as inlineData, or an https URL');
  }
  return {
    media: readMedia(uri, at),
    mediaType: asText(readMember(file, 'mimeType')) ?? '',
    name: asText(readMember(file, 'displayName')) ?? null,
  };
}

/** `raw` has the type of a URL where a client of chat completions would write it. */
function toContentPart({ media, mediaType, name }: Blob, param: string): ContentPart {
  const type = mediaType.toLowerCase();
  const typed = compact({ mime_type: mediaType || undefined });
  if (type.startsWith('image/')) {
    return { type: 'image', media, detail: null, param, raw: { image_url: typed } };
  }
  if (type.startsWith('audio/') && media.kind === 'bytes') {
    const format = type.slice('audio/'.length);
    return { type: 'audio', base64: media.base64, format: format === 'mpeg' ? 'mp3' : format, param, raw: {} };
  }
  return { type: 'file', media, name, param, raw: { file: typed } };
}
