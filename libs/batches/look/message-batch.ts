import type { MessageBatch } from '#libs/contracts/batches/message-batches.ts';
import { memberValues } from '#libs/kernel/json/json-members.ts';
import { messageErrorType } from '#libs/providers/messages/error-type.ts';
import { parseJson, toRecord } from '#libs/providers/turns/json-value.ts';
import { isTerminal } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { failureInBody, isSuccess } from '../results/result-line.ts';

/** A batch of messages as Anthropic's API shows it. `resultsUrl`: null if it has none. Pure. */
export function toMessageBatch(batch: BatchRow, resultsUrl: string | null): MessageBatch {
  const { status, total, completed, failed, expires_at: expiresAt } = batch;
  const hasEnded = isTerminal(status);
  const rest = status === 'failed' ? 0 : Math.max(0, total - completed - failed);
  const isCancelled = batch.cancelling_at !== null;
  const endedAt = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at;
  return {
    id: batch.id,
    type: 'message_batch',
    processing_status: hasEnded ? 'ended' : isCancelled ? 'canceling' : 'in_progress',
    request_counts: {
      processing: hasEnded ? 0 : rest,
      succeeded: completed,
      errored: status === 'failed' ? total : failed,
      canceled: status === 'cancelled' ? rest : 0,
      expired: status === 'expired' ? rest : 0,
    },
    created_at: batch.created_at.toISOString(),
    expires_at: expiresAt.toISOString(),
    ended_at: endedAt?.toISOString() ?? null,
    cancel_initiated_at: batch.cancelling_at?.toISOString() ?? null,
    archived_at: null,
    results_url: resultsUrl,
  };
}

/** A line of an output or error file as a line of Anthropic's results, without its line end. */
export function toMessageResult(line: Buffer): Buffer {
  const {
    custom_id: customId,
    response = nullText,
    error = nullText,
  } = memberValues(line, ['custom_id', 'response', 'error']);
  return resultOf(customId ?? nullText, response.equals(nullText) ? toFailure(error) : toResult(response));
}

/** The result of a request of a batch that was refused as a whole. `customId`: raw JSON text. */
export const toRefusedResult = (customId: Buffer, message: string): Buffer =>
  resultOf(customId, toErrored(400, message));

const nullText = Buffer.from('null');

const resultOf = (customId: Buffer, result: Buffer): Buffer =>
  Buffer.concat([Buffer.from('{"custom_id":'), customId, Buffer.from(',"result":'), result, Buffer.from('}')]);

function toResult(response: Buffer): Buffer {
  const { status_code: code, body = nullText } = memberValues(response, ['status_code', 'body']);
  const status = Number(code);
  if (isSuccess(status)) {
    return Buffer.concat([Buffer.from('{"type":"succeeded","message":'), body, Buffer.from('}')]);
  }
  const parsed = parseJson(body.toString());
  if (toRecord(parsed)['type'] !== 'error')
    return toErrored(status, failureInBody(parsed).message ?? `Status ${status}.`);
  return Buffer.concat([Buffer.from('{"type":"errored","error":'), body, Buffer.from('}')]);
}

function toFailure(error: Buffer): Buffer {
  const { code, message } = toRecord(parseJson(error.toString()));
  if (code === 'batch_cancelled') return Buffer.from('{"type":"canceled"}');
  if (code === 'batch_expired') return Buffer.from('{"type":"expired"}');
  return toErrored(500, String(message));
}

function toErrored(status: number, message: string): Buffer {
  const error = { type: 'error', error: { type: messageErrorType(status), message } };
  return Buffer.from(JSON.stringify({ type: 'errored', error }));
}
