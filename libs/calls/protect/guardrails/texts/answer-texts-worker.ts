import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { costToRead, type BodyCost } from '#libs/calls/upstream/answers/read-body.ts';
import { asRecord } from '#libs/calls/upstream/answers/usage.ts';
import { collectGarbage, limitHeapGrowth } from '#libs/kernel/heap-growth.ts';
import type { CallOperation } from '#libs/calls/call.ts';
import { outputTexts, type CallTexts } from './call-texts.ts';

if (!isMainThread) {
  // Lower priority than live work. On Linux each thread has its own priority; elsewhere this would slow down the whole
  // process.
  if (process.platform === 'linux') setPriority(0, 5);
  limitHeapGrowth();
}

/** `bytes` are shared with the process, so that they are copied once for both steps. */
export type TextsWork = { bytes: SharedArrayBuffer } & (
  | { step: 'measure'; bytesMax: number }
  | { step: 'read'; operation: CallOperation }
);

/** `texts` is null if the answer is not JSON. */
export type TextsFound = { kind: 'measured'; cost: BodyCost } | { kind: 'read'; texts: CallTexts | null };

/** Runs in a thread. */
export default function readInThread(work: TextsWork): TextsFound {
  const body = Buffer.from(work.bytes);
  if (work.step === 'measure') return { kind: 'measured', cost: costToRead(body, work) };
  const texts = answerTexts(work.operation, body);
  collectGarbage();
  return { kind: 'read', texts };
}

/** The texts of an answer's bytes; null if they are not JSON. */
export function answerTexts(operation: CallOperation, body: Buffer): CallTexts | null {
  try {
    return outputTexts(operation, asRecord(JSON.parse(body.toString())));
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}
