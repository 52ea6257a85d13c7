import type { UsageDetails } from '#libs/prices/usage.ts';
import type { Call, StreamDecoder } from '../provider.ts';
import { argumentsMemoryMax, ArgumentsWriter, type ArgumentsMemory } from './arguments-writer.ts';
import {
  blockedPrompt,
  readTokenCounts,
  readGeminiDetails,
  toFinishReason,
  headOf,
  isFinished,
  toCalledTool,
  toLogprobs,
} from './decode.ts';
import { decodeGoogleError } from './errors.ts';
import { createBlockPieces, readParts, type BlockPiece, type ReadPart } from './parts.ts';
import type { ChoiceWriter, FinishReason, StreamWriter } from '../turns/answer.ts';
import { type Json, asCount, parseJson, toRecord, toRecords } from '../turns/json-value.ts';

type CallPart = Extract<ReadPart, { kind: 'call' }>;
/** A call whose arguments arrive in pieces. `args` are those that arrived whole, if any. */
type OpenCall = {
  position: number;
  id: string | undefined;
  writer: ArgumentsWriter;
  args: unknown;
  hasPieces: boolean;
};

/** `memory` limits the arguments that the calls of all candidates buffer. */
type SharedState = { responseId: string; memory: ArgumentsMemory };

/** Converts one candidate of a stream to the chunks of a choice. */
class Candidate {
  readonly #index: number;
  readonly #writer: ChoiceWriter;
  readonly #shared: SharedState;
  readonly #pieces = createBlockPieces();
  #logprobs: Json[] = [];
  #calls = 0;
  #openCall: OpenCall | null = null;
  #hasContent = false;
  /** The finish reason that was written. Another one is written if calls follow a STOP. */
  #finished: FinishReason | null = null;

  constructor(index: number, writer: ChoiceWriter, shared: SharedState) {
    this.#index = index;
    this.#writer = writer;
    this.#shared = shared;
  }

  isFinished(): boolean {
    return this.#finished !== null;
  }

  start(): string[] {
    return this.#writer.start();
  }

  push(raw: Json): string[] {
    this.#logprobs.push(...(toLogprobs(raw)?.content ?? []));
    return [...this.#writeParts(raw), ...this.#writeFinish(raw)];
  }

  /** Ends the answer because the prompt was blocked. */
  block(refusal: string | null): string[] {
    this.#finished = 'content_filter';
    const payloads = refusal === null ? [] : this.#writer.refusal(refusal);
    return [...payloads, ...this.#writer.finish('content_filter')];
  }

  #writeParts(raw: Json): string[] {
    return readParts(raw).flatMap((part) => {
      const pieces = this.#pieces(part);
      if (part.kind === 'call') return this.#writeCall(part);
      if (part.kind === 'image' || (part.kind === 'text' && part.text !== '')) this.#hasContent = true;
      return pieces.flatMap((piece) => this.#writePiece(piece));
    });
  }

  #writePiece({ index, delta }: BlockPiece): string[] {
    if ('url' in delta) return this.#writer.image(delta.url, index, delta.signature);
    if ('text' in delta) return this.#writer.text(delta.text, index, delta.signature);
    return this.#writer.thought(delta, index);
  }

  /**
   * A call is one part. With `streamFunctionCallArguments`, its first part has the name, and parts without a name
   * continue it until one has no `willContinue`. A signature must be in the first part, because it becomes part of the
   * ID, which is sent with the name.
   */
  #writeCall(part: CallPart): string[] {
    const open = this.#openCall;
    const goesOn = open !== null && (part.name === '' || (part.id !== undefined && part.id === open.id));
    const payloads = goesOn ? [] : [...this.#endCall(), ...this.#startCall(part)];
    const openCall = this.#openCall;
    if (openCall === null) return payloads;
    openCall.args ??= part.args;
    openCall.hasPieces ||= part.partialArgs.length > 0;
    const pieces = part.partialArgs.map((piece) => openCall.writer.add(piece)).join('');
    payloads.push(...this.#writer.toolArguments(openCall.position, pieces));
    return part.willContinue ? payloads : [...payloads, ...this.#endCall()];
  }

  #startCall(part: CallPart): string[] {
    // It ends a call that has already ended.
    if (part.name === '' && part.args === undefined && part.partialArgs.length === 0) return [];
    const { responseId, memory } = this.#shared;
    const position = this.#calls;
    this.#calls += 1;
    const called = toCalledTool(part, { responseId, choice: this.#index, position });
    const isWhole = !part.willContinue && part.partialArgs.length === 0;
    const payloads = this.#writer.toolCall(position, isWhole ? called : { ...called, arguments: '' });
    if (isWhole) return payloads;
    const writer = new ArgumentsWriter(memory);
    this.#openCall = { position, id: part.id, writer, args: undefined, hasPieces: false };
    return payloads;
  }

  #endCall(): string[] {
    if (this.#openCall === null) return [];
    const { position, writer, args, hasPieces } = this.#openCall;
    this.#openCall = null;
    return this.#writer.toolArguments(position, hasPieces ? writer.end() : JSON.stringify(args ?? {}));
  }

  #writeFinish(raw: Json): string[] {
    const calls = this.#calls > 0;
    const logprobs = this.#logprobs;
    const hasReason = isFinished(raw);
    // Calls arrived after a finish reason other than `tool_calls`. The reason is written again, as clients expect it.
    if (!hasReason && !(this.#finished === 'stop' && calls)) return [];
    const reason = hasReason ? toFinishReason(raw, { calls, content: this.#hasContent }) : 'tool_calls';
    if (reason === this.#finished) return [];
    this.#finished = reason;
    this.#logprobs = [];
    // A call that was cut off (`length`) stays incomplete, as OpenAI's do.
    const ended = reason === 'tool_calls' ? this.#endCall() : [];
    this.#openCall = null;
    return [...ended, ...this.#writer.finish(reason, logprobs.length > 0 ? { content: logprobs } : null)];
  }
}

/**
 * Converts one stream of Gemini to the client's format. Each event is a small complete answer, and its usage is cumulative.
 *
 * Only the end of the body marks the end, so `done` is never returned: the core treats a stream as complete if every choice
 * has finished, and as truncated otherwise. The usage chunk is written once all known candidates have finished, and again
 * only if a later event has other counts.
 */
export function openGeminiStream(call: Call): StreamDecoder {
  const candidates = new Map<number, Candidate>();
  let chunks: StreamWriter | undefined;
  let responseId = '';
  let usageWritten = '';
  let details: UsageDetails | null = null;
  const memory: ArgumentsMemory = { left: argumentsMemoryMax };

  const begin = (response: Json): StreamWriter => {
    if (chunks === undefined) {
      const head = headOf(response, call);
      responseId = head.id;
      chunks = call.dialect.openAnswer(head, call);
    }
    return chunks;
  };

  const candidateOf = (writer: StreamWriter, index: number): Candidate => {
    let candidate = candidates.get(index);
    if (candidate === undefined) {
      candidate = new Candidate(index, writer.choice(index), { responseId, memory });
      candidates.set(index, candidate);
    }
    return candidate;
  };

  /** An error, possibly in the middle of an answer. */
  const writeBlocked = (writer: StreamWriter, refusal: string | null): string[] => {
    const open = [...candidates.values()].filter((candidate) => !candidate.isFinished());
    return (candidates.size === 0 ? [candidateOf(writer, 0)] : open).flatMap((candidate) => candidate.block(refusal));
  };

  const writeUsage = (writer: StreamWriter, response: Json): string[] => {
    const counts = readTokenCounts(response);
    if (counts === null || [...candidates.values()].some((candidate) => !candidate.isFinished())) return [];
    const written = JSON.stringify(counts);
    if (written === usageWritten) return [];
    usageWritten = written;
    return writer.usage(counts);
  };

  const push = (response: Json): string[] => {
    const writer = begin(response);
    const found = readGeminiDetails(response);
    if (found !== null) details = { ...details, ...found };
    const blocked = blockedPrompt(response);
    const written = blocked
      ? writeBlocked(writer, blocked.refusal)
      : toRecords(response['candidates']).flatMap((raw) => candidateOf(writer, asCount(raw['index'])).push(raw));
    // A choice that has sent no content yet still counts as unfinished, so that a broken stream is noticed.
    const started = candidates.size > 1 ? [...candidates.values()].flatMap((candidate) => candidate.start()) : [];
    return [...written, ...started, ...(candidates.size === 0 ? [] : writeUsage(writer, response))];
  };

  return {
    push: ({ data }) => {
      const parsed = parseJson(data);
      // The core reports that the data is not valid JSON, or that the stream was cut off here.
      if (parsed === undefined) return { payloads: [data] };
      const response = toRecord(Array.isArray(parsed) ? parsed[0] : parsed);
      if (response['error'] !== undefined) return { payloads: [], error: decodeGoogleError(200, data) };
      return { payloads: push(response) };
    },
    end: () => chunks?.end() ?? [],
    details: () => details,
  };
}
