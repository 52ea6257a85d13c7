import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call, StreamDecoder, StreamEvent, Translation } from '../provider.ts';
import { documentUrls, encodeCompletionRequest } from './encode-request.ts';
import { newCompletionId } from './chat-chunks.ts';
import { chatDialect } from './index.ts';
import type { AnswerBlock, CalledTool, Choice, ChoiceWriter, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, asCount, asNumber, asText, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { readTurns } from '../turns/read-turns.ts';

/**
 * Makes a translation for clients of other dialects from that of a provider whose own format is OpenAI's chat completions.
 * `signer` names the provider: only it gets its reasoning back.
 */
export function throughChat(chat: Translation, signer: string): Translation {
  const decodeError: Translation['decodeError'] = (status, body) => chat.decodeError(status, body);
  return {
    encode(call, upstream) {
      const { body, dropped } = encodeCompletionRequest(readTurns(call), call, signer);
      const outbound = chat.encode(inChat(call, body), upstream);
      return { ...outbound, dropped: [...(outbound.dropped ?? []), ...dropped] };
    },
    resourcesOf: (call) => documentUrls(readTurns(call)),
    decode(body, call) {
      const answer = chat.decode ? chat.decode(body, inChat(call, {})) : body;
      return Array.isArray(toRecord(answer)['choices']) ? decodeCompletion(toRecord(answer), call, signer) : answer;
    },
    openStream: (call) => {
      const chunks = chat.openStream?.(inChat(call, {})) ?? passing(decodeError);
      return translateChunks(chunks, call, signer, decodeError);
    },
    decodeError,
  };
}

/** The call as one of chat completions with this body. The adapter asks for usage where that is necessary. */
const inChat = (call: Call, body: Json): Call => ({
  ...call,
  operation: 'chat',
  dialect: chatDialect,
  body: Buffer.from(JSON.stringify(body)),
  edits: {},
  json: () => body,
  includeUsage: false,
  strict: false,
});

const passing = (decodeError: Translation['decodeError']): StreamDecoder => ({
  push: ({ event, data }) => {
    if (data === '[DONE]') return { payloads: [], done: true };
    if (event === 'error') return { payloads: [], error: decodeError(200, data) };
    return { payloads: [data] };
  },
});

const finishReasons: Readonly<Record<string, FinishReason>> = {
  stop: 'stop',
  length: 'length',
  tool_calls: 'tool_calls',
  function_call: 'tool_calls',
  content_filter: 'content_filter',
};

const toFinishReason = (reason: unknown): FinishReason =>
  (typeof reason === 'string' && Object.hasOwn(finishReasons, reason) ? finishReasons[reason] : undefined) ?? 'stop';

/** null: there is none. */
function readCounts(usage: unknown): TokenCounts | null {
  const counts = toRecord(usage);
  const { prompt_tokens: prompt, completion_tokens: completion } = counts;
  if (asNumber(prompt) === undefined && asNumber(completion) === undefined) return null;
  const ofPrompt = toRecord(counts['prompt_tokens_details']);
  return {
    promptTokens: asCount(prompt),
    completionTokens: asCount(completion),
    cachedTokens: asCount(ofPrompt['cached_tokens']),
    writtenTokens: asCount(ofPrompt['cache_write_tokens']),
    reasoningTokens: asCount(toRecord(counts['completion_tokens_details'])['reasoning_tokens']),
  };
}

/** The reasoning that many servers add to a message or a delta, by one of two names. */
const reasoningIn = (message: Json): string =>
  asText(message['reasoning_content']) ?? asText(message['reasoning']) ?? '';

function decodeCompletion(answer: Json, call: Call, signer: string): unknown {
  const { id, model, created, choices, usage } = answer;
  const head = {
    id: asText(id) ?? newCompletionId(),
    model: asText(model) ?? call.model,
    ...(asNumber(created) === undefined ? {} : { created: asCount(created) }),
    signer,
  };
  return call.dialect.encodeAnswer(head, toRecords(choices).map(readChoice), readCounts(usage), call);
}

function readChoice({ message, finish_reason: reason }: Json): Choice {
  const said = toRecord(message);
  const thinking = reasoningIn(said);
  const text = textOf(said['content']);
  const blocks: AnswerBlock[] = [];
  if (thinking !== '') blocks.push({ type: 'thinking', thinking });
  if (text !== '') blocks.push({ type: 'text', text });
  const toolCalls = toRecords(said['tool_calls']).map((called): CalledTool => {
    const { name, arguments: written } = toRecord(called['function']);
    return { id: asText(called['id']) ?? '', name: asText(name) ?? '', arguments: asText(written) || '{}' };
  });
  return { blocks, toolCalls, finishReason: toFinishReason(reason), refusal: asText(said['refusal']) ?? null };
}

/** Some servers send a list of parts instead of a text. */
const textOf = (content: unknown): string =>
  asText(content) ??
  toRecords(content)
    .map(({ text }) => asText(text) ?? '')
    .join('');

/** Translates the chunks that `chunks` returns. */
function translateChunks(
  chunks: StreamDecoder,
  call: Call,
  signer: string,
  decodeError: Translation['decodeError'],
): StreamDecoder {
  let answer: ReturnType<Call['dialect']['openAnswer']> | undefined;
  const choices = new Map<number, ChunkReader>();

  const read = (chunk: Json): string[] => {
    const { id, model, created } = chunk;
    answer ??= call.dialect.openAnswer(
      {
        id: asText(id) ?? newCompletionId(),
        model: asText(model) ?? call.model,
        ...(asNumber(created) === undefined ? {} : { created: asCount(created) }),
        signer,
      },
      call,
    );
    const payloads: string[] = [];
    for (const choice of toRecords(chunk['choices'])) {
      const index = asCount(choice['index']);
      if (index >= choicesMax) throw tooMany(`${choicesMax} choices`);
      let reader = choices.get(index);
      if (reader === undefined) choices.set(index, (reader = new ChunkReader(answer.choice(index))));
      payloads.push(...reader.read(choice));
    }
    const counts = readCounts(chunk['usage']);
    if (counts !== null) payloads.push(...answer.usage(counts));
    return payloads;
  };

  return {
    push(event: StreamEvent) {
      const { payloads, ...rest } = chunks.push(event);
      const written: string[] = [];
      for (const payload of payloads) {
        const chunk = parseJson(payload);
        // The core reports that the data is not valid JSON.
        if (typeof chunk !== 'object' || chunk === null) return { ...rest, payloads: [...written, payload] };
        const { error } = toRecord(chunk);
        if (error !== undefined && error !== null) return { payloads: written, error: decodeError(200, payload) };
        written.push(...read(toRecord(chunk)));
      }
      return { ...rest, payloads: written };
    },
    end: () => answer?.end() ?? [],
  };
}

/** A stream can name any numbers, and each takes memory until its end. OpenAI's highest `n` is 128. */
const choicesMax = 128;
const callsMax = 1_024;

const tooMany = (what: string): GatewayError =>
  new GatewayError(
    'provider_failed',
    'upstream_invalid_response',
    `The provider returned more than ${what} in one answer.`,
  );

/** Reads the deltas of one choice. Pieces of one kind that follow each other are one block. */
class ChunkReader {
  readonly #writer: ChoiceWriter;
  readonly #calls = new Set<number>();
  #block = -1;
  #kind: 'thinking' | 'text' | null = null;

  constructor(writer: ChoiceWriter) {
    this.#writer = writer;
  }

  read({ delta, finish_reason: reason }: Json): string[] {
    const said = toRecord(delta);
    const payloads = this.#writer.start();
    const thinking = reasoningIn(said);
    if (thinking !== '') payloads.push(...this.#writer.thought({ thinking }, this.#blockOf('thinking')));
    const text = textOf(said['content']);
    if (text !== '') payloads.push(...this.#writer.text(text, this.#blockOf('text')));
    const refusal = asText(said['refusal']) ?? '';
    if (refusal !== '') payloads.push(...this.#writer.refusal(refusal));
    for (const called of toRecords(said['tool_calls'])) payloads.push(...this.#readCall(called));
    if (typeof reason === 'string') payloads.push(...this.#writer.finish(toFinishReason(reason)));
    return payloads;
  }

  #blockOf(kind: 'thinking' | 'text'): number {
    if (this.#kind !== kind) this.#block += 1;
    this.#kind = kind;
    return this.#block;
  }

  #readCall(called: Json): string[] {
    const index = asCount(called['index']);
    const { name, arguments: written } = toRecord(called['function']);
    const fragment = asText(written) ?? '';
    if (this.#calls.has(index)) return this.#writer.toolArguments(index, fragment);
    if (this.#calls.size >= callsMax) throw tooMany(`${callsMax} calls`);
    this.#calls.add(index);
    this.#kind = null;
    const id = asText(called['id']) ?? `call_${index}`;
    return [
      ...this.#writer.toolCall(index, { id, name: asText(name) ?? '' }),
      ...this.#writer.toolArguments(index, fragment),
    ];
  }
}
