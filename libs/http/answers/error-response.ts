import type { IncomingMessage, ServerResponse } from 'node:http';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { drainThenEnd } from '../bodies/drain-request.ts';
import { messageStatus, findClientForm, toClientError } from './client-form.ts';
import { addLogFields, getContext } from '../request-context.ts';

/** The body of every error answer, always with all four keys (ERR-1). */
export type ErrorBody = {
  error: { message: string; type: string; param: string | null; code: string | null };
};

type ErrorAnswer = { status: number; type: string };

const answers: Record<ErrorKind, ErrorAnswer> = {
  invalid_request: { status: 400, type: 'invalid_request_error' },
  unsupported_operation: { status: 400, type: 'invalid_request_error' },
  unauthenticated: { status: 401, type: 'invalid_request_error' },
  forbidden: { status: 403, type: 'permission_error' },
  not_found: { status: 404, type: 'invalid_request_error' },
  method_not_allowed: { status: 405, type: 'invalid_request_error' },
  conflict: { status: 409, type: 'invalid_request_error' },
  payload_too_large: { status: 413, type: 'invalid_request_error' },
  unsupported_media_type: { status: 415, type: 'invalid_request_error' },
  rate_limited: { status: 429, type: 'rate_limit_error' },
  quota_exceeded: { status: 429, type: 'insufficient_quota' },
  budget_exceeded: { status: 412, type: 'insufficient_quota' },
  dependency_failed: { status: 424, type: 'invalid_request_error' },
  provider_failed: { status: 502, type: 'server_error' },
  unavailable: { status: 503, type: 'service_unavailable_error' },
  provider_timeout: { status: 504, type: 'server_error' },
  storage_full: { status: 507, type: 'server_error' },
  internal: { status: 500, type: 'server_error' },
};

// These refusals exist only in HTTP, so they have no separate kind.
const answersByCode: Record<string, ErrorAnswer> = {
  request_timeout: { status: 408, type: 'invalid_request_error' },
  range_not_satisfiable: { status: 416, type: 'invalid_request_error' },
  request_headers_too_large: { status: 431, type: 'invalid_request_error' },
};

// SDKs follow Retry-After without a limit (openai 6), or ignore it above two minutes (Python), so it is capped.
const sleepMsMax = 60_000;
const retryAfterMsDefault = 1_000;

/** The HTTP status of an error; 500 for a bug, which is everything but a GatewayError. */
export function httpStatus(error: unknown): number {
  const refusal = toGatewayError(error);
  return refusal === null ? 500 : toCachedAnswer(refusal).status;
}

/** The OpenAI error body. The text of a bug is never sent; the caller gets the request id to report. */
export function toErrorBody(error: unknown, requestId: string): ErrorBody {
  const refusal = toGatewayError(error);
  if (refusal === null) {
    const message = `The server had an error while processing your request. Include the request ID ${requestId} when you report it.`;
    return { error: { message, type: 'server_error', param: null, code: 'internal_error' } };
  }
  const { message, param, code, type } = refusal;
  return { error: { message, type: type ?? toCachedAnswer(refusal).type, param, code } };
}

/**
 * The response headers of an error in addition to content type and request ID. 429 and 503 always have both forms of
 * Retry-After. `x-should-retry: false` is added for waits of more than a minute, and if SDKs would repeat a call that
 * cannot succeed: 409 (unless the error has a time for a retry), an exhausted quota, a full disk.
 */
function errorHeaders(error: unknown): Record<string, string> {
  const refusal = toGatewayError(error);
  if (refusal === null) return {};
  const { kind, retryAfterMs } = refusal;
  if (kind === 'quota_exceeded' || kind === 'budget_exceeded' || kind === 'storage_full')
    return { 'x-should-retry': 'false' };
  if (retryAfterMs === undefined) {
    if (kind === 'conflict') return { 'x-should-retry': 'false' };
    if (kind !== 'rate_limited' && kind !== 'unavailable') return {};
  }
  const wanted = retryAfterMs ?? retryAfterMsDefault;
  const waitMs = Math.ceil(Math.max(1, Number.isFinite(wanted) ? wanted : sleepMsMax));
  const waits = { 'retry-after': String(Math.ceil(waitMs / 1_000)), 'retry-after-ms': String(waitMs) };
  return waitMs > sleepMsMax ? { ...waits, 'x-should-retry': 'false' } : waits;
}

/**
 * Answers a request with an error, and logs bugs with their stack. If the response headers have already been sent, the
 * connection is cut, because a response that ends normally would look complete. A body that the client is still sending
 * is read and dropped within bounds, so that the client sees the answer instead of a reset.
 */
export function sendError(request: IncomingMessage, response: ServerResponse, error: unknown, logger: Logger): void {
  const { requestId, traceId, logFields } = getContext(request);
  const status = httpStatus(error);
  const body = toErrorBody(error, requestId);
  // For the log line of the request, unless the handler has set a code. The message is never logged, because it can quote
  // the caller.
  const { code } = body.error;
  if (code !== null && logFields?.['error_code'] === undefined) addLogFields(request, { error_code: code });
  if (status === 500 && !response.destroyed) {
    logger.error({ err: error, request_id: requestId, trace_id: traceId }, 'request failed');
  }
  if (response.destroyed || response.writableEnded) return;
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const form = findClientForm(request);
  const shownStatus = form === 'messages' ? messageStatus(status) : status;
  const shown = toClientError(form, shownStatus, body, requestId);
  const bytes = Buffer.from(JSON.stringify(shown));
  for (const name of ['content-encoding', 'cache-control', 'etag']) response.removeHeader(name);
  for (const [name, value] of Object.entries(errorHeaders(error))) response.setHeader(name, value);
  response.statusCode = shownStatus;
  response.setHeader('content-type', 'application/json');
  response.setHeader('content-length', bytes.length);
  drainThenEnd(request, response, bytes, { isSlow: status === 408 });
}

/** The GatewayError of an error, also for errors of the database and of express; null for a bug. */
function toGatewayError(error: unknown): GatewayError | null {
  if (error instanceof GatewayError) return error.kind === 'internal' ? toGatewayError(error.cause) : error;
  if (isDatabaseTrouble(error)) {
    const message = 'The database is temporarily unavailable. Try again shortly.';
    return new GatewayError('unavailable', 'database_unavailable', message, { retryAfterMs: 1_000, cause: error });
  }
  if (error instanceof URIError) {
    return new GatewayError('invalid_request', 'invalid_url', 'The path contains a malformed percent-encoding.');
  }
  return null;
}

function toCachedAnswer(error: GatewayError): ErrorAnswer {
  const special = error.code === null ? undefined : answersByCode[error.code];
  return error.kind === 'invalid_request' && special !== undefined ? special : answers[error.kind];
}

/**
 * The whole answer, headers and body, to bytes that Node's parser rejected. In that case there is only a socket and no
 * request object. `error` comes from the parser.
 */
export function rawErrorResponse(error: ParserError, requestId: string): string {
  const refusal = toRawRefusal(error);
  const body = JSON.stringify(toErrorBody(refusal, requestId));
  const status = httpStatus(refusal);
  const reason =
    status === 408 ? 'Request Timeout' : status === 431 ? 'Request Header Fields Too Large' : 'Bad Request';
  return [
    `HTTP/1.1 ${status} ${reason}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    `x-request-id: ${requestId}`,
    'x-content-type-options: nosniff',
    'connection: close',
    '',
    body,
  ].join('\r\n');
}

function toRawRefusal({ code = '', rawPacket }: ParserError): GatewayError {
  if (code === 'HPE_HEADER_OVERFLOW') {
    return new GatewayError(
      'invalid_request',
      'request_headers_too_large',
      'The request line and headers are too large. Store a large config (POST /v1/configs) and send its slug.',
    );
  }
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') {
    return new GatewayError('invalid_request', 'request_timeout', 'The request did not arrive in time.');
  }
  const objection = rawPacket?.[0] === tlsHandshake ? tlsSpoken : objections[code];
  const message = `The bytes received are not a valid HTTP/1.1 request${objection === undefined ? '' : `: ${objection}`}.`;
  return new GatewayError('invalid_request', 'malformed_request', message);
}

/** The error of Node's HTTP parser; `rawPacket` contains the bytes that arrived last. */
type ParserError = { code?: string | undefined; rawPacket?: Uint8Array };

const tlsHandshake = 0x16; // The first byte of a TLS record that opens a connection (RFC 8446 5.1).
const tlsSpoken =
  'they are TLS (https), but this port serves plain HTTP. Use http://, or put a TLS proxy in front of it';

const header =
  'a header is malformed. A header name must not contain spaces and must end with a colon. A value, such as that of x-gateway-config, must not contain line breaks or control characters';
const chunk =
  'a chunk of the body must consist of its size in hexadecimal digits, a line break, and that number of bytes';
const length = 'Content-Length must be one whole number';
const line = 'its first line must be a method, a path that begins with a slash and has no spaces, and HTTP/1.1';

/** Explains what was wrong and what would be right, by the error code of the parser (llhttp). */
const objections: Readonly<Record<string, string>> = {
  HPE_INVALID_HEADER_TOKEN: header,
  HPE_CR_EXPECTED: header,
  HPE_LF_EXPECTED: header,
  HPE_INVALID_CHUNK_SIZE: chunk,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: chunk,
  HPE_STRICT: chunk,
  HPE_INVALID_CONTENT_LENGTH: length,
  HPE_UNEXPECTED_CONTENT_LENGTH: length,
  HPE_INVALID_TRANSFER_ENCODING: 'Transfer-Encoding must be chunked, and must not be combined with Content-Length',
  HPE_INVALID_METHOD:
    'its first word is not an HTTP method like POST. Bytes of a body beyond its Content-Length are read as another ' +
    'request',
  HPE_INVALID_VERSION: 'its HTTP version is not 1.1 or 1.0, or its first line does not end with CR and LF',
  HPE_PAUSED_H2_UPGRADE: 'HTTP/2 is not supported. Use HTTP/1.1, or put a proxy in front of this port',
  HPE_INVALID_CONSTANT: line,
  HPE_INVALID_URL: line,
  HPE_INVALID_EOF_STATE: 'the connection ended before it was complete',
  HPE_CLOSED_CONNECTION: 'more bytes arrived after a request with Connection: close',
};
