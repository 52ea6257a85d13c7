import { hash } from 'node:crypto';

// IDs of W3C Trace Context (https://www.w3.org/TR/trace-context/) for calls, whose own IDs can be any text.

const traceIdShape = /^(?!0{32})[0-9a-f]{32}$/;

/** The trace ID itself if it has the W3C form, otherwise one derived from it. */
export const w3cTraceId = (traceId: string): string =>
  traceIdShape.test(traceId) ? traceId : hash('sha256', traceId).slice(0, 32);

/**
 * The span ID of a call, derived from its request ID, so that it can be sent to the provider before the call has ended.
 */
export const callSpanId = (requestId: string): string => hash('sha256', `span ${requestId}`).slice(0, 16);

/** The span id of one of its attempts, from 0. */
export const attemptSpanId = (requestId: string, attempt: number): string =>
  hash('sha256', `span ${requestId} ${attempt}`).slice(0, 16);

/** The span ID of one claim of a job, which is the parent of the job's calls. */
export const jobSpanId = ({ id, retryCount }: { id: string; retryCount: number }): string =>
  hash('sha256', `job ${id} ${retryCount}`).slice(0, 16);

/** The `traceparent` header of the call. */
export const makeTraceparent = (traceId: string, requestId: string, isSampled: boolean): string =>
  `00-${w3cTraceId(traceId)}-${callSpanId(requestId)}-${isSampled ? '01' : '00'}`;
