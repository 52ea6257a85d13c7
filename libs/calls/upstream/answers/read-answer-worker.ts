import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { move, transferableSymbol, valueSymbol } from 'piscina';
import { collectGarbage, limitHeapGrowth } from '#libs/kernel/heap-growth.ts';
import type { Call } from '#libs/providers/provider.ts';
import { findDialect, findTranslation } from '#libs/providers/dialects.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { costToRead, isParsed, readBody, type BodyCost, type BodyRead } from './read-body.ts';

if (!isMainThread) {
  // Lower priority than live work. On Linux each thread has its own priority; elsewhere this would slow down the whole
  // process.
  if (process.platform === 'linux') setPriority(0, 5);
  limitHeapGrowth();
}

/** `blocks` are the pieces of the body in their order. */
export type AnswerWork = { blocks: readonly Uint8Array[] } & (
  | { step: 'measure'; bytesMax: number }
  | ({ step: 'read' } & SentCall)
);

/** The parts of a call that are needed to read its answer. `request`: the JSON that was sent, without the messages. */
export type SentCall = Pick<Call, 'operation' | 'model' | 'stream' | 'includeUsage' | 'strict'> & {
  provider: string;
  request: string;
  status: number;
  memberBytesMax: number;
};

/** The body in one piece and the memory for reading it, or its content. */
export type AnswerFound = { kind: 'measured'; bytes: Uint8Array; cost: BodyCost } | BodyRead;

/**
 * After answers of this size, garbage is collected immediately instead of staying until the next answer. That takes 20 ms, so
 * it is left out for an answer that passes unchanged: its bytes are moved out of the thread.
 */
const collectedBytesMin = 1_048_576;

/** Runs in a thread. The bytes of its result are moved out of the thread. */
export default function readInThread(work: AnswerWork): unknown {
  const { garbageBytes, found } = doWork(work);
  if (garbageBytes >= collectedBytesMin) collectGarbage();
  // Small buffers are part of Node's pool, which stays in this thread.
  if (!('bytes' in found) || found.bytes.length <= Buffer.poolSize) return found;
  return move({ [transferableSymbol]: [found.bytes.buffer], [valueSymbol]: found });
}

/** A separate function, so that everything it made is garbage when it has returned. */
function doWork(work: AnswerWork): { garbageBytes: number; found: AnswerFound } {
  const bytes = joined(work.blocks);
  if (work.step === 'measure') {
    return { garbageBytes: 0, found: { kind: 'measured', bytes, cost: costToRead(bytes, work) } };
  }
  const { status, memberBytesMax } = work;
  const { provider: id, ...sent } = work;
  const provider = findProvider(id);
  const translation = provider && findTranslation(provider, sent.operation, sent.model);
  if (!translation) throw new Error(`the provider ${id} has no ${sent.operation} operation`);
  const call = toCall(sent);
  const found = readBody({ bytes, status, memberBytesMax, translation, call });
  const isMovedOut = found.kind === 'answer' && found.bytes === bytes;
  const leavesGarbage = !isMovedOut || isParsed({ call, translation }, bytes.length);
  return { garbageBytes: leavesGarbage ? bytes.length : 0, found };
}

function toCall({ operation, model, stream, includeUsage, strict, request }: Omit<SentCall, 'provider'>): Call {
  return {
    operation,
    dialect: findDialect(operation),
    model,
    stream,
    includeUsage,
    strict,
    body: Buffer.from(request),
    edits: {},
    json: () => JSON.parse(request) as Readonly<Record<string, unknown>>,
    resources: new Map(),
    headers: {},
  };
}

function joined(blocks: readonly Uint8Array[]): Buffer {
  const [only] = blocks;
  if (blocks.length === 1 && only) return Buffer.from(only.buffer, only.byteOffset, only.byteLength);
  const whole = Buffer.concat(blocks);
  // Frees them now. They would stay until the next collection.
  for (const { buffer } of blocks) (buffer as ArrayBuffer).transfer(0);
  return whole;
}
