import { costToRead, largeBytesMin, quickWorkMax, tooDeep } from '#libs/calls/upstream/answers/read-body.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { CallOperation } from '#libs/calls/call.ts';
import { createThreadLane } from '#libs/threads/thread-lane.ts';
import { answerTexts, type TextsFound, type TextsWork } from './answer-texts-worker.ts';
import { noTexts, type CallTexts } from './call-texts.ts';

export type AnswerTexts = {
  /**
   * Returns the texts of an answer: read synchronously if that is certainly quick, otherwise in a thread. The memory
   * for it is charged to the call and stays charged. Throws GatewayError: provider_failed for an answer that cannot be
   * read, `server_overloaded` when there was no memory for too long, and the reason of `signal`.
   */
  read: (operation: CallOperation, body: Buffer, caller: Caller) => Promise<CallTexts>;
  stop: () => Promise<void>;
};

type Caller = { workspaceId: string; signal: AbortSignal; memory: MemoryLease | undefined };

/** Other operations answer with numbers, verdicts or images. */
const operationsWithTexts: ReadonlySet<CallOperation> = new Set<CallOperation>([
  'chat',
  'completions',
  'responses',
  'messages',
  'generate_content',
]);
/** Bodies are copied in one step. Checks of texts read up to two million characters. */
const bodyBytesMax = 16_777_216;
const valueBytesMax = 134_217_728;
/** Twice the estimated memory of a value: estimates can be a third too low, and the parser cannot be interrupted. */
const threadMemoryMb = 256;
const timeoutMs = 10_000;

/** Reads the texts for output guardrails without letting one answer block other calls. */
export function createAnswerTexts({ threads }: { threads: number }): AnswerTexts {
  const lane = createThreadLane<TextsWork, TextsFound>({
    threads,
    module: new URL('./answer-texts-worker.ts', import.meta.url),
    threadMemoryMb,
    idleTimeoutMs: 10_000,
  });

  const readInThread = async (operation: CallOperation, body: Buffer, caller: Caller): Promise<CallTexts | null> => {
    const { workspaceId: group, signal, memory } = caller;
    if (body.length > bodyBytesMax) throw tooLarge();
    await memory?.chargeWhenFree(body.length, signal);
    const bytes = new SharedArrayBuffer(body.length);
    Buffer.from(bytes).set(body);
    const options = { timeoutMs, group, signal };
    const found = await lane.run({ step: 'measure', bytes, bytesMax: bytesMaxOf(memory) }, options);
    if (found?.kind !== 'measured') throw tooLarge();
    const costBytes = checked(found.cost);
    await memory?.chargeWhenFree(costBytes, signal);
    const read = await lane.run({ step: 'read', bytes, operation }, options);
    if (read?.kind !== 'read') throw tooLarge();
    return read.texts;
  };

  const readHere = async (operation: CallOperation, body: Buffer, caller: Caller): Promise<CallTexts | null> => {
    const { memory, signal } = caller;
    const cost = costToRead(body, { bytesMax: bytesMaxOf(memory), workMax: quickWorkMax });
    if (cost.excess === 'work') return await readInThread(operation, body, caller);
    const costBytes = checked(cost);
    await memory?.chargeWhenFree(costBytes, signal);
    return answerTexts(operation, body);
  };

  return {
    async read(operation, body, caller) {
      if (!operationsWithTexts.has(operation)) return noTexts;
      const isLarge = body.length >= largeBytesMin;
      const texts = await (isLarge ? readInThread(operation, body, caller) : readHere(operation, body, caller));
      if (texts !== null) return texts;
      throw new GatewayError(
        'provider_failed',
        'upstream_invalid_response',
        "The provider's answer is not valid JSON.",
      );
    },
    stop: () => lane.stop(),
  };
}

const bytesMaxOf = (memory: MemoryLease | undefined): number =>
  memory === undefined ? valueBytesMax : Math.min(valueBytesMax, memory.leaseBytesMax - memory.usedBytes);

/** Returns the bytes of memory that the value takes. Throws when it takes too many, or nests too deeply. */
function checked({ excess, bytes }: { excess: string | null; bytes: number }): number {
  if (excess === null) return bytes;
  if (excess !== 'depth') throw tooLarge();
  const message = `The provider ${tooDeep}, so guardrails cannot check it.`;
  throw new GatewayError('provider_failed', 'upstream_invalid_response', message);
}

function tooLarge(): GatewayError {
  const message = "The provider's answer is too large for the guardrails to check. Ask for a shorter one.";
  return new GatewayError('provider_failed', 'upstream_response_too_large', message);
}
