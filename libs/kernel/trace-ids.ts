import { hash } from 'node:crypto';

// Ids of W3C Trace Context (https://www.w3.org/TR/trace-context/) for calls, whose own ids may be any text.

const traceIdShape = /^(?!0{32})[0-9a-f]{32}$/;

/** The trace id itself if it is one of W3C, else one that follows from it. */
export const w3cTraceId = (traceId: string): string =>
  traceIdShape.test(traceId) ? traceId : hash('sha256', traceId).slice(0, 32);

/** The span id of a call, which follows from its request id, so that its provider can be told of it before the call has ended. */
export const callSpanId = (requestId: string): string => hash('sha256', `span ${requestId}`).slice(0, 16);

/** The span id of one of its attempts, from 0. */
export const attemptSpanId = (requestId: string, attempt: number): string =>
  hash('sha256', `span ${requestId} ${attempt}`).slice(0, 16);

/** The span id of one claim of a job, below which the calls are that it makes. */
export const jobSpanId = ({ id, retryCount }: { id: string; retryCount: number }): string =>
  hash('sha256', `job ${id} ${retryCount}`).slice(0, 16);

/** The `traceparent` header of the call. */
export const traceparentOf = (traceId: string, requestId: string, isSampled: boolean): string =>
  `00-${w3cTraceId(traceId)}-${callSpanId(requestId)}-${isSampled ? '01' : '00'}`;
