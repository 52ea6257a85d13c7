import type { IncomingMessage, ServerResponse } from 'node:http';
import { unpacedBytesMax } from '#libs/kernel/sharing/byte-pace.ts';
import { Deadline, Deadlines } from '#libs/kernel/deadlines.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryBudget, MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { abortWhenClientLeaves } from '../client-signal.ts';
import { BodyPieces } from './body-pieces.ts';
import { hasBody } from './drain-request.ts';
import {
  LargeJsonBody,
  type BodyHead,
  type LargeBodies,
  type LargeBodyFindings,
  type LargeBodyTask,
} from './large-body.ts';
import { parseJsonBytes, type JsonTextLimits } from './parse-json-bytes.ts';
import { getContext, paceBody } from '../request-context.ts';

export type JsonBodyLimits = JsonTextLimits & {
  sizeBytesMax: number;
  /** From the first read of the body to its last byte; a slower client is disconnected. */
  timeoutMs: number;
  /** Shared by all requests of the process. Absent: no limit. */
  memory?: MemoryBudget;
  /** Parses and checks large bodies. Absent: they are handled in the main thread, like all others. */
  largeBodies?: LargeBodies;
};

/**
 * 10 MiB is enough for a conversation with images. No real request has 64 levels, 100,000 members, 300,000 token IDs or
 * 16,000 messages.
 */
export const defaultJsonBodyLimits: JsonBodyLimits = {
  sizeBytesMax: 10 * 1_048_576,
  depthMax: 64,
  membersMax: 100_000,
  workMax: 320_000,
  timeoutMs: 30_000,
};

/** A JSON body: its bytes and its value. */
export type JsonBody = {
  readonly bytes: Buffer;
  /** A large body is parsed when its value is first read, which takes up to about 40 ms. */
  readonly value: unknown;
  readonly head: BodyHead;
  /** Whether the contract of its route has already checked it. */
  readonly isChecked: boolean;
};

/** This much is charged immediately: nearly all bodies are smaller and arrive in one piece. */
const smallBytesMax = 65_536;

const bodyKey = Symbol('json body');
type Carrier = { [bodyKey]?: JsonBody };

/** The body that was read as JSON; undefined: there is none, or it is of another type. */
export const findJsonBody = (request: IncomingMessage): JsonBody | undefined => (request as Carrier)[bodyKey];

/** The body of a route that declares one. Throws on any other route, which is a bug (500). */
export function getJsonBody(request: IncomingMessage): JsonBody {
  const body = findJsonBody(request);
  if (body === undefined) throw new Error('the request has no JSON body: its route does not declare one');
  return body;
}

/**
 * Reads and parses a JSON body, which `getJsonBody` returns afterwards. A large body is also checked by its `contract`.
 * Throws unsupported_media_type (not application/json in UTF-8, or compressed), payload_too_large, and invalid_request:
 * empty, not UTF-8, not JSON (with the position), nested too deeply, too many members, a duplicate member, too slow, or
 * cut off. Throws unavailable if the process has no memory or no thread for it, and the errors of the contract for a
 * large body.
 */
export async function readJsonBody(
  request: IncomingMessage,
  response: ServerResponse,
  limits: JsonBodyLimits,
  contract: string | null = null,
): Promise<void> {
  checkHeaders(request, limits);
  // It disconnected while its key was looked up, so no event will report its end.
  if (response.destroyed) throw clientDisconnected();
  const context = getContext(request);
  const lease = limits.memory?.open(context.caller?.workspaceId ?? null) ?? null;
  context.memory = lease;
  const pieces = await readPieces(request, response, limits, lease);
  const { largeBodies } = limits;
  const sizeBytes = pieces.reduce((sum, { length }) => sum + length, 0);
  if (largeBodies !== undefined && sizeBytes > largeBodies.sizeBytesMin) {
    const judged = await judgeLarge(request, response, { ...limits, largeBodies }, lease, { pieces, contract });
    (request as Carrier)[bodyKey] = new LargeJsonBody(judged, contract !== null);
    return;
  }
  const [only] = pieces;
  const bytes = pieces.length === 1 && only !== undefined ? only : Buffer.concat(pieces);
  const value = parseJsonBytes(bytes, limits, lease);
  const head = typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : null;
  (request as Carrier)[bodyKey] = { bytes, value, head, isChecked: false };
}

async function judgeLarge(
  request: IncomingMessage,
  response: ServerResponse,
  { depthMax, membersMax, workMax, largeBodies }: JsonBodyLimits & { largeBodies: LargeBodies },
  lease: MemoryLease | null,
  { pieces, contract }: Pick<LargeBodyTask, 'pieces' | 'contract'>,
): Promise<LargeBodyFindings> {
  const workspaceId = getContext(request).caller?.workspaceId ?? null;
  const usedBytes = lease?.usedBytes ?? 0;
  const leaseBytesMax = lease?.leaseBytesMax ?? Number.POSITIVE_INFINITY;
  const task = { pieces, limits: { depthMax, membersMax, workMax }, contract, usedBytes, leaseBytesMax };
  const { signal } = abortWhenClientLeaves(response);
  const judging = largeBodies.judge(task, { workspaceId, signal });
  const judged = await judging.catch((error: unknown) => {
    throw signal.aborted ? clientDisconnected() : error;
  });
  lease?.charge(judged.usedBytes - usedBytes);
  return judged;
}

const jsonContentType = /^application\/json[\t ]*(?:;[\t ]*charset[\t ]*=[\t ]*"?utf-?8"?[\t ]*)?;?$/i;

function checkHeaders(request: IncomingMessage, limits: JsonBodyLimits): void {
  const { headers } = request;
  const type = headers['content-type'];
  if (type !== undefined && type !== 'application/json' && !jsonContentType.test(type)) {
    throw new GatewayError(
      'unsupported_media_type',
      'unsupported_media_type',
      `The content type ${JSON.stringify(type.slice(0, 100))} is not supported. Send application/json in UTF-8.`,
    );
  }
  refuseCompressed(request);
  if (Number(headers['content-length'] ?? 0) > limits.sizeBytesMax) throw bodyTooLarge(limits.sizeBytesMax);
  if (!hasBody(request)) {
    throw new GatewayError('invalid_request', 'empty_body', 'The request body is empty. Expected a JSON object.');
  }
}

/** Throws unsupported_media_type for a compressed request, because a small one could expand to gigabytes. */
export function refuseCompressed(request: IncomingMessage): void {
  const encoding = request.headers['content-encoding'];
  if (encoding === undefined || encoding.toLowerCase() === 'identity') return;
  throw new GatewayError(
    'unsupported_media_type',
    'unsupported_content_encoding',
    'Compressed request bodies are not supported. Send the body without Content-Encoding.',
  );
}

function bodyTooLarge(sizeBytesMax: number): GatewayError {
  const message = `The request body is too large. The maximum is ${sizeBytesMax} bytes.`;
  return new GatewayError('payload_too_large', 'request_too_large', message);
}

function readPieces(
  request: IncomingMessage,
  response: ServerResponse,
  limits: JsonBodyLimits,
  lease: MemoryLease | null,
): Promise<Buffer[]> {
  return new Promise((resolve, reject) => {
    const reader = new BodyReader({ request, limits, lease, resolve, reject });
    (request as Reading)[readerKey] = reader;
    request.on('data', onData).on('end', onEnd).on('error', onClosed).on('close', onClosed);
    if (request.headers.expect !== undefined) response.writeContinue();
  });
}

const readerKey = Symbol('body reader');
type Reading = IncomingMessage & { [readerKey]?: BodyReader | undefined };

// All requests share these listeners, which are never removed. Listeners for each request cost 1 µs per call.
const onData = function (this: Reading, chunk: Buffer): void {
  this[readerKey]?.take(chunk);
};
const onEnd = function (this: Reading): void {
  this[readerKey]?.settle(null);
};
const onClosed = function (this: Reading): void {
  this[readerKey]?.settle(clientDisconnected());
};

const deadlines = new Deadlines();

type BodyReaderOptions = {
  request: Reading;
  limits: JsonBodyLimits;
  lease: MemoryLease | null;
  resolve: (pieces: Buffer[]) => void;
  reject: (error: unknown) => void;
};

/** Collects the pieces of a body. */
class BodyReader {
  readonly #options: BodyReaderOptions;
  readonly #pieces: BodyPieces;
  readonly #announcedBytes: number;
  readonly #deadline = new Deadline(deadlines, this);
  #heldBytes: number;
  #resumption: NodeJS.Timeout | undefined;

  /** Throws the errors of `charge`. */
  constructor(options: BodyReaderOptions) {
    const { request, lease, limits } = options;
    const announcedBytes = Number(request.headers['content-length'] ?? 0);
    this.#options = options;
    this.#announcedBytes = announcedBytes;
    this.#pieces = new BodyPieces(announcedBytes);
    // Larger bodies are charged as they arrive, so that an announced size alone does not exclude others.
    this.#heldBytes = Math.min(announcedBytes, smallBytesMax);
    const isExcluded = announcedBytes > this.#heldBytes && lease?.hasRoom(announcedBytes) === false;
    lease?.charge(isExcluded ? announcedBytes : this.#heldBytes);
    this.#deadline.set(limits.timeoutMs);
  }

  take(chunk: Buffer): void {
    const { request, limits, lease } = this.#options;
    const sizeBytes = this.#pieces.sizeBytes + chunk.length;
    if (sizeBytes > limits.sizeBytesMax) return this.settle(bodyTooLarge(limits.sizeBytesMax));
    if (sizeBytes > this.#heldBytes) {
      try {
        lease?.charge(sizeBytes - this.#heldBytes);
      } catch (error) {
        return this.settle(error);
      }
      this.#heldBytes = sizeBytes;
    }
    this.#pieces.push(chunk);
    if (sizeBytes <= unpacedBytesMax || sizeBytes === this.#announcedBytes) return;
    const waitMs = paceBody(request, chunk.length);
    if (waitMs === 0) return;
    request.pause();
    clearTimeout(this.#resumption);
    this.#resumption = setTimeout(() => request.resume(), waitMs);
  }

  onDeadline(): void {
    const message = `The request body did not arrive within ${this.#options.limits.timeoutMs} ms.`;
    this.settle(new GatewayError('invalid_request', 'request_timeout', message));
  }

  /** `error`: null if the whole body has arrived. What happens later has no effect. */
  settle(error: unknown): void {
    const { request, resolve, reject } = this.#options;
    this.#deadline.clear();
    if (this.#resumption !== undefined) clearTimeout(this.#resumption);
    request[readerKey] = undefined;
    if (error === null) resolve(this.#pieces.take());
    else reject(error);
  }
}

/**
 * The error for a client that disconnected before it had sent everything. No client reads this answer, but it is
 * counted.
 */
export function clientDisconnected(): GatewayError {
  return new GatewayError('invalid_request', 'client_closed_request', 'The client closed the connection early.');
}
