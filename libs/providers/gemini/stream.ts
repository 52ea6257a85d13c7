import { createChunkWriter, type ChoiceWriter, type ChunkWriter, type FinishReason } from '../chat-chunks.ts';
import { countOf, toRecord, toRecords, type Json } from '../json-value.ts';
import type { Call, StreamDecoder } from '../provider.ts';
import {
  argumentsMemoryMax,
  createArgumentsWriter,
  type ArgumentsMemory,
  type ArgumentsWriter,
} from './arguments-writer.ts';
import { blockedPrompt, countsOf, finishReasonOf, headOf, isFinished, toCalledTool, toLogprobs } from './decode.ts';
import { decodeGoogleError } from './errors.ts';
import { createBlockPieces, readParts, type ReadPart } from './parts.ts';

type CallPart = Extract<ReadPart, { kind: 'call' }>;
/** A call whose arguments come in pieces. `args` are those that came whole, if any did. */
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
  /** The reason that was written; another one is written when calls come behind a STOP. */
  finished: FinishReason | null;
};

/**
 * One stream of Gemini to OpenAI's chunks. Each event is a whole small answer; its usage counts from the beginning.
 *
 * Nothing marks the end but the end of the body, so `done` is never told: the core takes an end for complete when every
 * choice was finished, and for truncated otherwise. The usage chunk is written once all candidates seen are finished, and
 * again only if a later event counts differently.
 */
export function openGeminiStream(call: Call): StreamDecoder {
  const candidates = new Map<number, Candidate>();
  let chunks: ChunkWriter | undefined;
  let responseId = '';
  let usageTold = '';
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
   * A call is whole in one part; or, where `streamFunctionCallArguments` was asked for, its first part has the name and
   * later ones, without a name, go on with it until one does not say `willContinue`. A signature must be in the first part:
   * it travels in the id, which is told with the name.
   */
  const writeCall = (candidate: Candidate, part: CallPart): string[] => {
    const told: string[] = [];
    const { openCall: open } = candidate;
    const goesOn = open !== null && (part.name === '' || (part.id !== undefined && part.id === open.id));
    if (!goesOn) {
      told.push(...endCall(candidate));
      // The end of a call that has ended already.
      if (part.name === '' && part.args === undefined && part.partialArgs.length === 0) return told;
      const position = candidate.calls;
      candidate.calls += 1;
      const called = toCalledTool(part, { responseId, choice: candidate.index, position, strict: call.strict });
      const isWhole = !part.willContinue && part.partialArgs.length === 0;
      told.push(...candidate.writer.toolCall(position, isWhole ? called : { ...called, arguments: '' }));
      if (isWhole) return told;
      const writer = createArgumentsWriter(memory);
      candidate.openCall = { position, id: part.id, writer, args: undefined, hasPieces: false };
    }
    const { openCall } = candidate;
    if (openCall === null) return told;
    openCall.args ??= part.args;
    openCall.hasPieces ||= part.partialArgs.length > 0;
    const pieces = part.partialArgs.map((piece) => openCall.writer.add(piece)).join('');
    told.push(...candidate.writer.toolArguments(openCall.position, pieces));
    return part.willContinue ? told : [...told, ...endCall(candidate)];
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
    const isTold = isFinished(raw);
    // Calls behind an end that was no call's: said again, with the reason that clients act on.
    if (!isTold && !(finished === 'stop' && calls > 0)) return [];
    const reason = isTold ? finishReasonOf(raw, { calls: calls > 0, content: hasContent }) : 'tool_calls';
    if (reason === finished) return [];
    candidate.finished = reason;
    candidate.logprobs = [];
    // A call that was cut off (`length`) is left as far as it came, as OpenAI leaves it.
    const ended = reason === 'tool_calls' ? endCall(candidate) : [];
    candidate.openCall = null;
    return [...ended, ...candidate.writer.finish(reason, logprobs.length > 0 ? { content: logprobs } : null)];
  };

  /** Also in the middle of an answer. */
  const writeBlocked = (writer: ChunkWriter, refusal: string | null): string[] => {
    const open = [...candidates.values()].filter(({ finished }) => finished === null);
    return (candidates.size === 0 ? [candidateOf(writer, 0)] : open).flatMap((candidate) => {
      candidate.finished = 'content_filter';
      const told = refusal === null ? [] : candidate.writer.delta({ refusal });
      return [...told, ...candidate.writer.finish('content_filter')];
    });
  };

  const writeUsage = (writer: ChunkWriter, response: Json): string[] => {
    const counts = countsOf(response);
    if (counts === null || [...candidates.values()].some(({ finished }) => finished === null)) return [];
    const written = JSON.stringify(counts);
    if (written === usageTold) return [];
    usageTold = written;
    return writer.usage(counts);
  };

  const push = (response: Json): string[] => {
    const writer = begin(response);
    const blocked = blockedPrompt(response);
    const written = blocked
      ? writeBlocked(writer, blocked.refusal)
      : toRecords(response['candidates']).flatMap((raw) => {
          const candidate = candidateOf(writer, countOf(raw['index']));
          candidate.logprobs.push(...(toLogprobs(raw)?.content ?? []));
          return [...writeParts(candidate, raw), ...writeFinish(candidate, raw)];
        });
    // Of several, one that has said nothing yet must still be missed when the stream breaks off.
    const started =
      candidates.size > 1 ? [...candidates.values()].flatMap((candidate) => candidate.writer.start()) : [];
    return [...written, ...started, ...(candidates.size === 0 ? [] : writeUsage(writer, response))];
  };

  return {
    push: ({ data }) => {
      let parsed: unknown;
      try {
        parsed = JSON.parse(data);
      } catch {
        return { payloads: [data] }; // no JSON: the core says so, or sees the stream cut off here
      }
      const response = toRecord(Array.isArray(parsed) ? parsed[0] : parsed);
      if (response['error'] !== undefined) return { payloads: [], error: decodeGoogleError(200, data) };
      return { payloads: push(response) };
    },
  };
}
