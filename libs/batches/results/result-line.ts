import { batchLineId } from '#libs/kernel/ids.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';

/** The outcome of one line: an answer of a provider with any status, or an error. */
export type LineOutcome =
  | { kind: 'response'; statusCode: number; requestId: string; body: Buffer }
  | { kind: 'error'; code: string; message: string };

/** Codes and messages of lines without an answer. The first two are OpenAI's own (RESULT-3). */
export const unansweredMessages = {
  batch_expired: 'This request could not be executed before the completion window expired.',
  batch_cancelled: 'This request was cancelled before it could be executed.',
  worker_crashed: 'This request could not be executed because the process that ran it crashed at every attempt.',
  result_lost: 'This request was answered, but the stored answer was lost. Check the blob store and run it again.',
} as const;

/** 2xx answers go to the output file, everything else to the error file (RESULT-2). `status`: 0 without an answer. */
export const isSuccess = (status: number): boolean => status >= 200 && status < 300;

/** The HTTP status of an outcome, 0 without an answer. */
export const statusOf = (outcome: LineOutcome): number => (outcome.kind === 'response' ? outcome.statusCode : 0);

/** Why a line failed, as far as its answer says so. */
export type LineFailure = { code: string | null; message: string | null };

/** A larger answer is not searched for its error. */
const errorBytesMax = 65_536;
const codeLengthMax = 100;
const messageLengthMax = 1_000;

/** Why a line failed. null: it did not. */
export function failureOf(outcome: LineOutcome): LineFailure | null {
  if (outcome.kind === 'error') return { code: outcome.code, message: outcome.message };
  if (isSuccess(outcome.statusCode)) return null;
  if (outcome.body.length > errorBytesMax) return { code: null, message: null };
  try {
    return failureInBody(JSON.parse(outcome.body.toString()));
  } catch {
    return { code: null, message: null };
  }
}

/** The code of the error in the body of an answer, or else its type, and its message. */
export function failureInBody(body: unknown): LineFailure {
  const { error } = (body ?? {}) as { error?: unknown };
  if (typeof error === 'string') return { code: null, message: textUpTo(error, messageLengthMax) };
  const { code, type, message } = (error ?? {}) as Record<string, unknown>;
  return {
    code: textUpTo(code, codeLengthMax) ?? textUpTo(type, codeLengthMax),
    message: textUpTo(message, messageLengthMax),
  };
}

const textUpTo = (value: unknown, lengthMax: number): string | null =>
  typeof value === 'string' && value !== '' ? toStorableText(value.slice(0, lengthMax)) : null;

/**
 * The exact line of the output or error file, without its line end: the four members (RESULT-1), with the `batchLineId`
 * of the line, the custom_id as its raw JSON text, and the provider's bytes as they came. Raw CR and LF in the body become spaces; in valid JSON they can
 * only be whitespace between tokens.
 */
export function resultLine(id: string, customId: Buffer, outcome: LineOutcome): Buffer {
  const head = `{"id":"${id}","custom_id":`;
  if (outcome.kind === 'error') {
    const error = JSON.stringify({ code: outcome.code, message: outcome.message });
    return Buffer.concat([Buffer.from(head), customId, Buffer.from(`,"response":null,"error":${error}}`)]);
  }
  const response = `,"response":{"status_code":${outcome.statusCode},"request_id":${JSON.stringify(outcome.requestId)},"body":`;
  return Buffer.concat([
    Buffer.from(head),
    customId,
    Buffer.from(response),
    withoutLineBreaks(outcome.body),
    Buffer.from('},"error":null}'),
  ]);
}

/** Why lines of a batch that takes no more results were never answered. */
export const unansweredCode = (batch: Pick<BatchRow, 'finalizing_reason'>): 'batch_expired' | 'batch_cancelled' =>
  batch.finalizing_reason === 'expired' ? 'batch_expired' : 'batch_cancelled';

/** The error line of a request that was never answered. `customId`: raw JSON text; undefined if it cannot be read. */
export function unansweredLine(
  batch: Pick<BatchRow, 'id' | 'finalizing_reason'>,
  line: number,
  customId: Buffer | undefined,
): Buffer {
  const code = unansweredCode(batch);
  const error = { kind: 'error' as const, code, message: unansweredMessages[code] };
  return resultLine(batchLineId(batch.id, line), customId ?? nullText, error);
}

const nullText = Buffer.from('null');

/** The bytes of an answer as they are in the file of results. */
export function withoutLineBreaks(body: Buffer): Buffer {
  if (!body.includes(0x0a) && !body.includes(0x0d)) return body;
  const clean = Buffer.from(body);
  for (let at = 0; at < clean.length; at += 1) if (clean[at] === 0x0a || clean[at] === 0x0d) clean[at] = 0x20;
  return clean;
}
