import { isUtf8 } from 'node:buffer';
import { randomFillSync } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { metadataText, withoutReserved } from '#libs/contracts/scalars.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { BytePace } from '#libs/kernel/sharing/byte-pace.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { findClientForm } from './answers/client-form.ts';
import type { Caller } from './caller.ts';

/**
 * The IDs, caller and timing of one request, for logs, events and calls to providers. Times are `performance.now()`.
 */
export type RequestContext = {
  readonly requestId: string;
  readonly traceId: string;
  readonly spanId: string | null;
  readonly parentSpanId: string | null;
  readonly spanName: string | null;
  /** Whether the caller records its trace; null: it sent no `traceparent` of this trace. */
  readonly isSampled: boolean | null;
  /** `x-gateway-metadata`, its values as texts, for routes that read it; null if the header is absent. Has no prototype. */
  metadata: Readonly<Record<string, string>> | null;
  readonly startedMs: number;
  /** Template of the matched route, like `/v1/batches/:batchId`; null before or without a match. */
  route: string | null;
  /** Of the matched route. */
  scope: string | null;
  caller: Caller | null;
  /** Whether the session cookie of the console signed the request in. */
  isBrowserSession: boolean;
  /** Additional fields for the log line of the request (provider, model, tokens), set by handlers. */
  logFields: Record<string, unknown> | null;
  /** Whether the request is a call that succeeded and has a row in the request log. */
  isInRequestLog: boolean;
  /** The memory that the request uses until its answer has been sent; null while it has no body. */
  memory: MemoryLease | null;
  /** The pace at which large bodies are read; null for no limit. */
  readonly bodyPace: BytePace | null;
};

const contextKey = Symbol('request context');
type Carrier = { [contextKey]?: RequestContext };

const metadataPairsMax = 64; // Metadata is a set of labels, not a document. The header itself has at most 16 KiB.
/** The maximum characters of one value, like Portkey's. */
export const metadataTextMax = 128;
const tracingTextMax = 256;
const headersMax = 100;

/**
 * Creates the context of a request. Throws invalid_request, with the header as param, for an invalid tracing header.
 * The context exists even then, so that the answer has its IDs.
 */
export function openContext(request: IncomingMessage, bodyPace: BytePace | null): RequestContext {
  const { headers } = request;
  const traceparent = headers.traceparent === undefined ? null : parseTraceparent(headers.traceparent);
  const context = {
    requestId: newRequestId(),
    traceId: '',
    spanId: null as string | null,
    parentSpanId: null as string | null,
    spanName: null as string | null,
    isSampled: null as boolean | null,
    metadata: null as Readonly<Record<string, string>> | null,
    startedMs: performance.now(),
    route: null,
    scope: null,
    caller: null,
    isBrowserSession: false,
    logFields: null,
    isInRequestLog: false,
    memory: null as MemoryLease | null,
    bodyPace,
  };
  (request as Carrier)[contextKey] = context;
  const sentTraceId = gatewayHeader(request, 'x-gateway-trace-id', 'x-portkey-trace-id');
  const isTraceIdUsable = sentTraceId !== undefined && isTracingText(sentTraceId);
  context.traceId = isTraceIdUsable ? sentTraceId : (traceparent?.traceId ?? newTraceId());
  if (traceparent !== null && context.traceId === traceparent.traceId) context.isSampled = traceparent.isSampled;

  if (sentTraceId !== undefined && !isTraceIdUsable) throw unusableTracing('x-gateway-trace-id');
  if (request.rawHeaders.length > headersMax * 2) {
    throw new GatewayError(
      'invalid_request',
      'request_headers_too_large',
      `A request can have at most ${headersMax} headers.`,
    );
  }
  if (request.httpVersionMajor !== 1) {
    throw new GatewayError('invalid_request', 'malformed_request', 'HTTP/0.9 is not supported. Use HTTP/1.1.');
  }
  if (headers.host === undefined && request.httpVersion === '1.1') {
    throw new GatewayError('invalid_request', 'missing_host', 'The Host header is missing; HTTP/1.1 requires it.');
  }
  if (hasSecondHost(request.rawHeaders)) {
    // Node uses the first one, but a proxy in front may have used the last one (RFC 9112 3.2).
    throw new GatewayError('invalid_request', 'ambiguous_host', 'There are two Host headers. Send only one.');
  }
  context.spanId = tracingHeader(request, 'x-gateway-span-id', 'x-portkey-span-id');
  context.parentSpanId =
    tracingHeader(request, 'x-gateway-parent-span-id', 'x-portkey-parent-span-id') ?? traceparent?.spanId ?? null;
  context.spanName = tracingHeader(request, 'x-gateway-span-name', 'x-portkey-span-name');
  return context;
}

/** Runs for every request, so names are compared by length first. */
function hasSecondHost(rawHeaders: readonly string[]): boolean {
  let count = 0;
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] as string;
    if (name.length === 4 && name.toLowerCase() === 'host') count += 1;
  }
  return count > 1;
}

/** Reads the metadata header into the context. Throws invalid_request, with the header as param, if it is invalid. */
export function readMetadata(request: IncomingMessage): void {
  const header = gatewayHeader(request, 'x-gateway-metadata', 'x-portkey-metadata');
  if (header !== undefined) getContext(request).metadata = parseMetadata(header);
}

/** Counts bytes of a large body, and returns how many ms to wait before reading more. 0 without a context. */
export function paceBody(request: IncomingMessage, bytes: number): number {
  const context = (request as Carrier)[contextKey];
  return context?.bodyPace?.spend(context.caller?.workspaceId ?? null, bytes) ?? 0;
}

/**
 * Prevents browsers from treating an answer as a page of this origin, whose scripts could use the session of the
 * console. The console and the other pages replace the policy with their own.
 */
const inertHeaders = [
  'x-content-type-options',
  'nosniff',
  'content-security-policy',
  "sandbox; default-src 'none'",
] as const;

/** Headers of every answer, including errors: names and values in turn. Without a context, there are no IDs. */
export function standardHeaders(request: IncomingMessage): string[] {
  const context = (request as Carrier)[contextKey];
  if (context === undefined) return [...inertHeaders];
  const headers = ['x-request-id', context.requestId, 'x-gateway-trace-id', context.traceId, ...inertHeaders];
  const { idHeader } = findClientForm(request);
  return idHeader === null ? headers : [idHeader, context.requestId, ...headers];
}

/**
 * Whether the client used `x-portkey-` names for headers, and therefore reads those names in the answer too. Runs for
 * every answer, so most names are ruled out by two characters.
 */
export function usesAliases({ rawHeaders }: IncomingMessage): boolean {
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] as string;
    if (name.charCodeAt(1) !== 45 || (name.charCodeAt(2) | 32) !== 112) continue; // These are "-" and "p".
    if (name.slice(0, 10).toLowerCase() === 'x-portkey-') return true;
  }
  return false;
}

/** The context of a request. Throws if the request did not come through `createHttpApp`. */
export function getContext(request: IncomingMessage): RequestContext {
  const context = (request as Carrier)[contextKey];
  if (context === undefined) throw new Error('the request has no context: it was not served by createHttpApp');
  return context;
}

/** The authenticated caller. Throws on a public route, which has none; that is a bug (500). */
export function getCaller(request: IncomingMessage): Caller {
  const { caller } = getContext(request);
  if (caller === null) throw new Error('the request has no caller: its route is public');
  return caller;
}

/** Adds fields to the log line of the request. */
export function addLogFields(request: IncomingMessage, fields: Record<string, unknown>): void {
  const context = getContext(request);
  context.logFields = context.logFields === null ? fields : { ...context.logFields, ...fields };
}

/**
 * The value of an `x-gateway-` header or its `x-portkey-` alias; undefined if absent or empty. Both names are given in
 * full, because building a name from a prefix for each lookup costs more than the lookup.
 * @testOnly
 */
export function gatewayHeader(request: IncomingMessage, name: string, alias: string): string | undefined {
  const value = request.headers[name] ?? request.headers[alias];
  return typeof value === 'string' && value !== '' ? value : undefined;
}

function tracingHeader(request: IncomingMessage, name: string, alias: string): string | null {
  const value = gatewayHeader(request, name, alias);
  if (value === undefined) return null;
  if (!isTracingText(value)) throw unusableTracing(name);
  return value;
}

function unusableTracing(header: string): GatewayError {
  const message = `The header ${header} must be 1 to ${tracingTextMax} printable ASCII characters.`;
  return new GatewayError('invalid_request', 'invalid_value', message, { param: header });
}

// These values go into response headers, logs and jsonb.
function isTracingText(value: string): boolean {
  return value.length <= tracingTextMax && /^[\x20-\x7e]+$/.test(value);
}

const traceparentShape = /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-|$)/;

/** W3C Trace Context. A malformed header is ignored, as that specification requires. */
function parseTraceparent(header: string | string[]): { traceId: string; spanId: string; isSampled: boolean } | null {
  const match = typeof header === 'string' ? traceparentShape.exec(header) : null;
  const [, traceId, spanId, flags] = match ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return null;
  return { traceId, spanId, isSampled: (Number.parseInt(flags, 16) & 1) === 1 };
}

function parseMetadata(header: string): Readonly<Record<string, string>> {
  const refuse = (what: string): GatewayError => {
    const message = `The header x-gateway-metadata must be a JSON object whose values have at most ${metadataTextMax} characters each: ${what}.`;
    return new GatewayError('invalid_request', 'invalid_value', message, { param: 'x-gateway-metadata' });
  };
  let value: unknown;
  try {
    value = JSON.parse(toUtf8(header));
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw refuse('it is not valid JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw refuse('it is not an object');
  const entries = Object.entries(withoutReserved(value));
  if (entries.length > metadataPairsMax) throw refuse(`it has more than ${metadataPairsMax} members`);
  const metadata: Record<string, string> = Object.create(null) as Record<string, string>;
  for (const [key, entry] of entries) {
    const text = metadataText(entry);
    const shown = JSON.stringify(key.slice(0, metadataTextMax));
    if (!isMetadataText(key) || key === '') throw refuse(`the name ${shown} is not allowed`);
    if (!isMetadataText(text))
      throw refuse(`the value of ${shown} is too long, contains U+0000 or is not well-formed Unicode`);
    metadata[key] = text;
  }
  return metadata;
}

// jsonb supports neither U+0000 nor lone surrogates (TEXT-1).
function isMetadataText(text: string): boolean {
  return text.length <= metadataTextMax && text.isWellFormed() && !text.includes('\0');
}

// Node decodes header bytes as latin1, but clients that send JSON with other characters mean UTF-8.
function toUtf8(header: string): string {
  if (/^[\x20-\x7e]*$/.test(header)) return header;
  const bytes = Buffer.from(header, 'latin1');
  return isUtf8(bytes) ? bytes.toString('utf8') : header;
}

/** `req_` and 32 hex digits, the form that users of the SDKs know. */
export function newRequestId(): string {
  const at = drawRandom();
  return `req_${pool.toString('hex', at, at + 16)}`;
}

/**
 * 32 hex digits, as a trace id of https://www.w3.org/TR/trace-context/#trace-id: 48 bits of time, then random ones, an order
 * that the specification allows. Trace ids of the same moment are then neighbours in the index of the request log, which
 * makes a new row a fifth cheaper for Postgres than with random ids.
 */
function newTraceId(): string {
  const at = drawRandom();
  pool.writeUIntBE(Date.now(), at, 6);
  return pool.toString('hex', at, at + 16);
}

// Random bytes are drawn in bulk: one system call per 256 ids.
const pool = Buffer.alloc(4_096);
let poolOffset = pool.length;

/** The offset of 16 unused bytes in the pool. */
function drawRandom(): number {
  if (poolOffset === pool.length) {
    randomFillSync(pool);
    poolOffset = 0;
  }
  poolOffset += 16;
  return poolOffset - 16;
}
