import { hash } from 'node:crypto';

/** The outcome of one line: an answer of a provider with any status, or an error. */
export type LineOutcome =
  | { kind: 'response'; statusCode: number; requestId: string; body: Buffer }
  | { kind: 'error'; code: string; message: string };

/** Codes and messages of lines that never got an answer. The first two are OpenAI's own (RESULT-3). */
export const unansweredMessages = {
  batch_expired: 'This request could not be executed before the completion window expired.',
  batch_cancelled: 'This request was cancelled before it could be executed.',
  worker_crashed: 'This request could not be executed because the process that ran it crashed at every attempt.',
} as const;

/**
 * The id of a line's result: `batch_req_` and 32 hex digits. It is the same each time the line is run, so that a repeat
 * produces the same bytes.
 */
export function resultId(batchId: string, line: number): string {
  return `batch_req_${hash('sha256', `${batchId}:${line}`).slice(0, 32)}`;
}

/** 2xx answers go to the output file, everything else to the error file (RESULT-2). */
export function isSuccess(outcome: LineOutcome): boolean {
  return outcome.kind === 'response' && outcome.statusCode >= 200 && outcome.statusCode < 300;
}

/**
 * The exact line of the output or error file, without its line end: the four members (RESULT-1), the custom_id as its
 * raw JSON text, and the provider's bytes as they came. Raw CR and LF in the body become spaces; in valid JSON they can
 * only be whitespace between tokens.
 */
export function resultLine(batchId: string, line: number, customId: Buffer, outcome: LineOutcome): Buffer {
  const head = `{"id":"${resultId(batchId, line)}","custom_id":`;
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

function withoutLineBreaks(body: Buffer): Buffer {
  if (!body.includes(0x0a) && !body.includes(0x0d)) return body;
  const clean = Buffer.from(body);
  for (let at = 0; at < clean.length; at += 1) if (clean[at] === 0x0a || clean[at] === 0x0d) clean[at] = 0x20;
  return clean;
}
