import { isUtf8 } from 'node:buffer';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { duplicateBreach } from '#libs/contracts/body-rules.ts';
import { describeBreach } from '#libs/contracts/describe-issue.ts';
import { countMembers, findDuplicateMember } from '#libs/kernel/duplicate-members.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import { measureJson } from '#libs/kernel/measure-json.ts';
import type { MemoryBudget, MemoryLease } from '#libs/kernel/memory-budget.ts';
import { hasBody } from './drain-request.ts';
import { jsonErrorOffset } from './json-scan.ts';
import { contextOf } from './request-context.ts';

export type JsonBodyLimits = {
  sizeBytesMax: number;
  /** Nesting of objects and arrays. */
  depthMax: number;
  /** Members of all objects together: a million tiny keys cost far more memory than their bytes. */
  membersMax: number;
  /** What it may take to parse and check a body, while all other calls wait; see `measureJson`. */
  workMax: number;
  /** From the first look at the body to its last byte: a client that drips is cut off. */
  timeoutMs: number;
  /** Shared by all requests of the process. Absent: unbounded. */
  memory?: MemoryBudget;
};

/** Defaults: 10 MiB holds a conversation with images; 64 levels, 100,000 members, 300,000 token ids or 16,000 messages are beyond any real request. */
export const defaultJsonBodyLimits: JsonBodyLimits = {
  sizeBytesMax: 10 * 1_048_576,
  depthMax: 64,
  membersMax: 100_000,
  workMax: 320_000,
  timeoutMs: 30_000,
};

/** A JSON body: the bytes as they came, and what they say, parsed once. */
export type JsonBody = { readonly bytes: Buffer; readonly value: unknown };

/** Charged at once: nearly all bodies are smaller, and come in one piece. */
const smallBytesMax = 65_536;

const bodyKey = Symbol('json body');
type Carrier = { [bodyKey]?: JsonBody };

/** The body of a route that declares one; throws (a bug, 500) on any other route. */
export function jsonBodyOf(request: IncomingMessage): JsonBody {
  const body = (request as Carrier)[bodyKey];
  if (body === undefined) throw new Error('the request has no JSON body: its route does not declare one');
  return body;
}

/**
 * Reads and parses a JSON body; afterwards `jsonBodyOf` and `request.body` have it.
 * Throws unsupported_media_type (not application/json in UTF-8, or compressed), payload_too_large, and invalid_request:
 * empty, not UTF-8, not JSON (with the position), nested too deeply, too many members, a member given twice, too slow,
 * cut off; unavailable when the process has no memory for it now.
 */
export async function readJsonBody(
  request: IncomingMessage & { body?: unknown },
  response: ServerResponse,
  limits: JsonBodyLimits,
): Promise<void> {
  checkHeaders(request, limits);
  // It left while its key was looked up: no event will tell of its end any more.
  if (response.destroyed) throw clientGone();
  const context = contextOf(request);
  const lease = limits.memory?.open(context.caller?.workspaceId ?? null) ?? null;
  context.memory = lease;
  const bytes = await readBytes(request, response, limits, lease);
  const body = { bytes, value: parseJson(bytes, limits, lease) };
  (request as Carrier)[bodyKey] = body;
  request.body = body.value;
}

const jsonContentType = /^application\/json[\t ]*(?:;[\t ]*charset[\t ]*=[\t ]*"?utf-?8"?[\t ]*)?;?$/i;

function checkHeaders(request: IncomingMessage, limits: JsonBodyLimits): void {
  const { headers } = request;
  const type = headers['content-type'];
  if (type !== undefined && type !== 'application/json' && !jsonContentType.test(type)) {
    throw new GatewayError(
      'unsupported_media_type',
      'unsupported_media_type',
      `The content type ${JSON.stringify(type.slice(0, 100))} is not supported here: send application/json in UTF-8.`,
    );
  }
  refuseCompressed(request);
  if (Number(headers['content-length'] ?? 0) > limits.sizeBytesMax) throw bodyTooLarge(limits.sizeBytesMax);
  if (!hasBody(request)) {
    throw new GatewayError('invalid_request', 'empty_body', 'The request body is empty: a JSON object is expected.');
  }
}

/** Throws unsupported_media_type for a compressed request: a small one could unpack to gigabytes. */
export function refuseCompressed(request: IncomingMessage): void {
  const encoding = request.headers['content-encoding'];
  if (encoding === undefined || encoding.toLowerCase() === 'identity') return;
  throw new GatewayError(
    'unsupported_media_type',
    'unsupported_content_encoding',
    'Compressed request bodies are not supported: send the body without Content-Encoding.',
  );
}

function bodyTooLarge(sizeBytesMax: number): GatewayError {
  const message = `The request body is too large: at most ${sizeBytesMax} bytes are accepted here.`;
  return new GatewayError('payload_too_large', 'request_too_large', message);
}

function readBytes(
  request: IncomingMessage,
  response: ServerResponse,
  limits: JsonBodyLimits,
  lease: MemoryLease | null,
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let sizeBytes = 0;
    const toldBytes = Number(request.headers['content-length'] ?? 0);
    // Larger ones are charged as they come: who only tells of a large body must not keep others out.
    let heldBytes = Math.min(toldBytes, smallBytesMax);
    lease?.charge(toldBytes > heldBytes && !lease.hasRoom(toldBytes) ? toldBytes : heldBytes);
    const settle = (error: unknown): void => {
      clearTimeout(timer);
      request.off('data', take).off('end', finish).off('error', abort).off('close', abort);
      if (error === null) resolve(chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks));
      else reject(error);
    };
    const take = (chunk: Buffer): void => {
      sizeBytes += chunk.length;
      if (sizeBytes > limits.sizeBytesMax) return settle(bodyTooLarge(limits.sizeBytesMax));
      if (sizeBytes > heldBytes) {
        try {
          lease?.charge(sizeBytes - heldBytes);
        } catch (error) {
          return settle(error);
        }
        heldBytes = sizeBytes;
      }
      // Most bodies are of one piece, and leave no others behind.
      if (chunks.length > 0) countTransferred(chunk.length);
      chunks.push(chunk);
    };
    const finish = (): void => settle(null);
    const abort = (): void => settle(clientGone());
    const timer = setTimeout(() => {
      const message = `The request body did not arrive within ${limits.timeoutMs} ms.`;
      settle(new GatewayError('invalid_request', 'request_timeout', message));
    }, limits.timeoutMs);
    request.on('data', take).on('end', finish).on('error', abort).on('close', abort);
    if (request.headers.expect !== undefined) response.writeContinue();
  });
}

/** The client left before it had sent everything; nobody reads this answer, but it is counted as a refusal. */
export function clientGone(): GatewayError {
  return new GatewayError('invalid_request', 'client_closed_request', 'The client closed the connection early.');
}

/** Bytes to a JSON value, charged to the lease; throws as `readJsonBody` does. */
function parseJson(bytes: Buffer, limits: JsonBodyLimits, lease: MemoryLease | null): unknown {
  if (!isUtf8(bytes)) {
    throw new GatewayError('invalid_request', 'invalid_utf8', 'The request body is not valid UTF-8.');
  }
  const { excess, members, textBytes, valueBytes } = measureJson(bytes, limits);
  if (excess === 'depth') {
    const message = `The request body is nested more than ${limits.depthMax} levels deep.`;
    throw new GatewayError('invalid_request', 'json_too_deep', message);
  }
  if (excess === 'members') {
    const message = `The objects of the request body have more than ${limits.membersMax} members.`;
    throw new GatewayError('invalid_request', 'json_too_many_members', message);
  }
  if (excess === 'work') {
    const message =
      'The request body holds too many values: about 300,000 numbers, 45,000 members or 16,000 messages are the most that ' +
      'is accepted. Send fewer, or several requests.';
    throw new GatewayError('invalid_request', 'json_too_complex', message);
  }
  if (lease !== null) {
    const wholeBytes = lease.usedBytes + textBytes + valueBytes;
    if (wholeBytes > lease.leaseBytesMax) throw tooComplex(wholeBytes, lease.leaseBytesMax);
    lease.charge(textBytes + valueBytes);
  }
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw malformed(bytes);
  } finally {
    lease?.give(textBytes);
  }
  if (countMembers(value) < members) throw duplicated(bytes);
  return value;
}

function duplicated(bytes: Buffer): GatewayError {
  const { code, message, param } = describeBreach(duplicateBreach(findDuplicateMember(bytes) ?? []));
  return new GatewayError('invalid_request', code, message, { param });
}

function tooComplex(wholeBytes: number, bytesMax: number): GatewayError {
  const message =
    `The request body holds so many values that it would take ${wholeBytes} bytes of memory: at most ${bytesMax} are ` +
    'there for one request. Send fewer values, or several requests.';
  return new GatewayError('payload_too_large', 'request_too_complex', message);
}

const placedBytesMax = 262_144;

const byteOrderMark = Buffer.from('\uFEFF');

// V8's own message quotes the body and often has no position.
function malformed(bytes: Buffer): GatewayError {
  if (bytes.subarray(0, byteOrderMark.length).equals(byteOrderMark)) {
    const message = 'The request body begins with a byte order mark: save or send it as UTF-8 without BOM.';
    return new GatewayError('invalid_request', 'invalid_json', message);
  }
  // To find the place takes a hundred times as long as to parse a text.
  if (bytes.length > placedBytesMax) {
    const message = `The request body is not valid JSON. It is too long (${bytes.length} bytes) to say where.`;
    return new GatewayError('invalid_request', 'invalid_json', message);
  }
  const offset = jsonErrorOffset(bytes);
  const before = bytes.subarray(0, offset);
  const line = before.toString('latin1').split('\n').length;
  const column = before.subarray(before.lastIndexOf(0x0a) + 1).toString('utf8').length + 1;
  const what = offset >= bytes.length ? 'it ends too early' : 'an unexpected character';
  const message = `The request body is not valid JSON: ${what} at byte ${offset} (line ${line}, column ${column}).`;
  return new GatewayError('invalid_request', 'invalid_json', message);
}
