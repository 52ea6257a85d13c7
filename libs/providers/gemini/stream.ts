import type { UsageDetails } from '#libs/prices/usage.ts';
import { createChunkWriter, type ChoiceWriter, type ChunkWriter, type FinishReason } from '../chat/chat-chunks.ts';
import { asCount, parseJson, toRecord, toRecords, type Json } from '../chat/json-value.ts';
import type { Call, StreamDecoder } from '../provider.ts';
import {
  argumentsMemoryMax,
  createArgumentsWriter,
  type ArgumentsMemory,
  type ArgumentsWriter,
} from './arguments-writer.ts';
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
import { createBlockPieces, readParts, type ReadPart } from './parts.ts';

type CallPart = Extract<ReadPart, { kind: 'call' }>;
/** A call whose arguments arrive in pieces. `args` are those that arrived whole, if any. */
type OpenCall = {
  position: number;
  id: string | undefined;
  writer: ArgumentsWriter;
  args: unknown;
  hasPieces: boolean;
};

type Candidate = {
  index: number;
  writer: ChoiceWriter;
  pieces: ReturnType<typeof createBlockPieces>;
  logprobs: Json[];
  calls: number;
  openCall: OpenCall | null;
  hasContent: boolean;
  /** The finish reason that was written. Another one is written if calls follow a STOP. */
  finished: FinishReason | null;
};

/**
 * Converts one stream of Gemini to OpenAI's chunks. Each event is a small complete answer, and its usage is cumulative.
 *
 * Only the end of the body marks the end, so `done` is never returned: the core treats a stream as complete if every choice
 * has finished, and as truncated otherwise. The usage chunk is written once all known candidates have finished, and again
 * only if a later event has other counts.
 */
export function openGeminiStream(call: Call): StreamDecoder {
  const candidates = new Map<number, Candidate>();
  let chunks: ChunkWriter | undefined;
  let responseId = '';
  let usageWritten = '';
  let details: UsageDetails | null = null;
  const memory: ArgumentsMemory = { left: argumentsMemoryMax };

  const begin = (response: Json): ChunkWriter => {
    if (chunks === undefined) {
      const head = headOf(response, call);
      responseId = head.id;
      chunks = createChunkWriter(head, call);
    }
    return chunks;
  };

  const candidateOf = (writer: ChunkWriter, index: number): Candidate => {
    let candidate = candidates.get(index);
    if (candidate === undefined) {
      candidate = {
        index,
        writer: writer.choice(index),
        pieces: createBlockPieces(),
        logprobs: [],
        calls: 0,
        openCall: null,
        hasContent: false,
        finished: null,
      };
      candidates.set(index, candidate);
    }
    return candidate;
  };

  const endCall = (candidate: Candidate): string[] => {
    const { openCall } = candidate;
    if (openCall === null) return [];
    candidate.openCall = null;
    const { position, writer, args, hasPieces } = openCall;
    return candidate.writer.toolArguments(position, hasPieces ? writer.end() : JSON.stringify(args ?? {}));
  };

  /**
   * A call is one part. With `streamFunctionCallArguments`, its first part has the name, and parts without a name
   * continue it until one has no `willContinue`. A signature must be in the first part, because it becomes part of the
   * ID, which is sent with the name.
   */
  const writeCall = (candidate: Candidate, part: CallPart): string[] => {
    const payloads: string[] = [];
    const { openCall: open } = candidate;
    const goesOn = open !== null && (part.name === '' || (part.id !== undefined && part.id === open.id));
    if (!goesOn) {
      payloads.push(...endCall(candidate));
      // It ends a call that has already ended.
      if (part.name === '' && part.args === undefined && part.partialArgs.length === 0) return payloads;
      const position = candidate.calls;
      candidate.calls += 1;
      const called = toCalledTool(part, { responseId, choice: candidate.index, position, strict: call.strict });
      const isWhole = !part.willContinue && part.partialArgs.length === 0;
      payloads.push(...candidate.writer.toolCall(position, isWhole ? called : { ...called, arguments: '' }));
      if (isWhole) return payloads;
      const writer = createArgumentsWriter(memory);
      candidate.openCall = { position, id: part.id, writer, args: undefined, hasPieces: false };
    }
    const { openCall } = candidate;
    if (openCall === null) return payloads;
    openCall.args ??= part.args;
    openCall.hasPieces ||= part.partialArgs.length > 0;
    const pieces = part.partialArgs.map((piece) => openCall.writer.add(piece)).join('');
    payloads.push(...candidate.writer.toolArguments(openCall.position, pieces));
    return part.willContinue ? payloads : [...payloads, ...endCall(candidate)];
  };

  const writeParts = (candidate: Candidate, raw: Json): string[] =>
    readParts(raw).flatMap((part) => {
      const pieces = call.strict ? [] : candidate.pieces(part);
      const shown = pieces.length > 0 ? { content_blocks: pieces } : {};
      if (part.kind === 'call') return writeCall(candidate, part);
      if (part.kind === 'text' && part.text !== '') {
        candidate.hasContent = true;
        return candidate.writer.delta({ content: part.text, ...shown });
      }
      if (part.kind === 'image') candidate.hasContent = true;
      return pieces.length > 0 ? candidate.writer.delta(shown) : [];
    });

  const writeFinish = (candidate: Candidate, raw: Json): string[] => {
    const { calls, hasContent, finished, logprobs } = candidate;
    const hasReason = isFinished(raw);
    // Calls arrived after a finish reason other than `tool_calls`. The reason is written again, as clients expect it.
    if (!hasReason && !(finished === 'stop' && calls > 0)) return [];
    const reason = hasReason ? toFinishReason(raw, { calls: calls > 0, content: hasContent }) : 'tool_calls';
    if (reason === finished) return [];
    candidate.finished = reason;
    candidate.logprobs = [];
    // A call that was cut off (`length`) stays incomplete, as OpenAI's do.
    const ended = reason === 'tool_calls' ? endCall(candidate) : [];
    candidate.openCall = null;
    return [...ended, ...candidate.writer.finish(reason, logprobs.length > 0 ? { content: logprobs } : null)];
  };

  /** An error, possibly in the middle of an answer. */
  const writeBlocked = (writer: ChunkWriter, refusal: string | null): string[] => {
    const open = [...candidates.values()].filter(({ finished }) => finished === null);
    return (candidates.size === 0 ? [candidateOf(writer, 0)] : open).flatMap((candidate) => {
      candidate.finished = 'content_filter';
      const payloads = refusal === null ? [] : candidate.writer.delta({ refusal });
      return [...payloads, ...candidate.writer.finish('content_filter')];
    });
  };

  const writeUsage = (writer: ChunkWriter, response: Json): string[] => {
    const counts = readTokenCounts(response);
    if (counts === null || [...candidates.values()].some(({ finished }) => finished === null)) return [];
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
      : toRecords(response['candidates']).flatMap((raw) => {
          const candidate = candidateOf(writer, asCount(raw['index']));
          candidate.logprobs.push(...(toLogprobs(raw)?.content ?? []));
          return [...writeParts(candidate, raw), ...writeFinish(candidate, raw)];
        });
    // A choice that has sent no content yet still counts as unfinished, so that a broken stream is noticed.
    const started =
      candidates.size > 1 ? [...candidates.values()].flatMap((candidate) => candidate.writer.start()) : [];
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
    details: () => details,
  };
}
