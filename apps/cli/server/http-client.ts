import { randomUUID } from 'node:crypto';
import { setTimeout as wait } from 'node:timers/promises';
import { version } from '#libs/kernel/version.ts';
import { ApiError, CliError, UnreachableError } from './cli-error.ts';
import { note } from '../terminal/output.ts';

export type Query = Readonly<Record<string, string | number | undefined>>;
export type RequestOptions = {
  query?: Query;
  /** Sent as JSON. */
  json?: unknown;
  /** Streamed, and created again for each attempt. */
  body?: () => AsyncIterable<Uint8Array>;
  headers?: Readonly<Record<string, string>>;
  /** Makes a POST safe to repeat. Default: a new one per call. */
  idempotencyKey?: string;
  /** Time until the answer starts. Default 60 s. */
  timeoutMs?: number;
  signal?: AbortSignal | undefined;
  /** Waits half a minute for an unavailable server, as during a restart, and prints a note. */
  isPatient?: boolean;
};

export type Client = {
  /** Without `/v1`. */
  server: string;
  /** The JSON of the answer, of at most 64 MiB. Throws ApiError, UnreachableError, CliError. */
  json<Answer>(method: string, path: string, options?: RequestOptions): Promise<Answer>;
  /** The response itself, with a 2xx status. Not retried once it has started. Read it with `readPieces`. */
  open(method: string, path: string, options?: RequestOptions): Promise<Response>;
  /** Every item of a list, page by page, up to `limit`. */
  list<Item extends { id?: string }>(path: string, query: Query, limit: number): Promise<Item[]>;
};

const answerBytesMax = 64 * 1_048_576;
/** A server that sends no data for this long is unavailable. An event stream has a comment every 15 s. */
const silenceMs = 60_000;
const attemptsMax = 4;
const patientAttemptsMax = 8;
const retryDelayMs = 500;
const retryDelayMaxMs = 10_000;

export function createClient({ server, key }: { server: string; key: string | null }): Client {
  const send = async (method: string, path: string, options: RequestOptions): Promise<Response> => {
    const url = new URL(`${server}${path}`);
    for (const [name, value] of Object.entries(options.query ?? {}))
      if (value !== undefined) url.searchParams.set(name, String(value));
    const controller = new AbortController();
    const timeoutMs = options.timeoutMs ?? silenceMs;
    const timer = setTimeout(() => controller.abort(new Error(`no answer within ${timeoutMs / 1_000} s`)), timeoutMs);
    const signals = [controller.signal, ...(options.signal ? [options.signal] : [])];
    try {
      return await fetch(url, {
        method,
        // The key must not be sent to another server.
        redirect: 'manual',
        signal: options.signal ? AbortSignal.any(signals) : controller.signal,
        headers: {
          ...(key === null ? {} : { authorization: `Bearer ${key}` }),
          'user-agent': `sluice-cli/${version}`,
          ...(options.json === undefined ? {} : { 'content-type': 'application/json' }),
          ...(options.idempotencyKey === undefined ? {} : { 'idempotency-key': options.idempotencyKey }),
          ...options.headers,
        },
        ...(options.json === undefined ? {} : { body: JSON.stringify(options.json) }),
        ...(options.body === undefined ? {} : { body: options.body(), duplex: 'half' }),
      });
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason;
      if (causeOf(error) instanceof CliError) throw causeOf(error);
      throw new UnreachableError(`${server} cannot be reached: ${describeReason(error)}.`, {
        hint: 'Check the address, and that the server is running. sluice doctor can help.',
        cause: error,
      });
    } finally {
      clearTimeout(timer);
    }
  };

  const open: Client['open'] = async (method, path, given = {}) => {
    const options = method === 'POST' ? { idempotencyKey: randomUUID(), ...given } : given;
    for (let attempt = 1; ; attempt += 1) {
      try {
        const response = await send(method, path, options);
        if (response.ok) return response;
        throw await getFailureCode(response, server);
      } catch (error) {
        const isPatient = options.isPatient === true && error instanceof UnreachableError;
        if (attempt >= (isPatient ? patientAttemptsMax : attemptsMax) || !(isPatient || isRetryable(error)))
          throw error;
        if (isPatient && attempt === 2) note('The server is unavailable. Waiting for it.');
        const delay = error instanceof ApiError ? error.retryAfterMs : null;
        const delayMs = Math.min(delay ?? retryDelayMs * 2 ** (attempt - 1), retryDelayMaxMs);
        await wait(delayMs, undefined, options.signal ? { signal: options.signal } : {});
      }
    }
  };

  const json: Client['json'] = async <Answer>(method: string, path: string, options?: RequestOptions) => {
    const response = await open(method, path, options);
    const text = await asText(response, server);
    try {
      return JSON.parse(text) as Answer;
    } catch {
      throw new CliError(`The answer of ${server} is not valid JSON.`, {
        hint: 'Check that this is a Sluice server. A proxy may have answered instead.',
      });
    }
  };

  return {
    server,
    json,
    open,
    async list<Item extends { id?: string }>(path: string, query: Query, limit: number) {
      type Page = Item[] | { data: Item[]; has_more?: boolean; last_id?: string | null };
      const items: Item[] = [];
      let after: string | undefined;
      while (items.length < limit) {
        const page: Page = await json('GET', path, {
          query: { ...query, limit: Math.min(limit - items.length, 100), after },
        });
        // Some kinds are listed as a bare array, which has only one page.
        const { data, has_more: hasMore = false, last_id: lastId = null } = Array.isArray(page) ? { data: page } : page;
        items.push(...data.slice(0, limit - items.length));
        after = lastId ?? data.at(-1)?.id;
        if (!hasMore || after === undefined) break;
      }
      return items;
    },
  };
}

/** The pieces of a response. Throws UnreachableError if it is cut off or sends no data for a minute. */
export async function* readPieces(response: Response, server: string): AsyncGenerator<Uint8Array> {
  const reader = response.body?.getReader();
  if (reader === undefined) return;
  try {
    for (;;) {
      let timer: NodeJS.Timeout | undefined;
      const silence = new Promise<never>((_resolve, reject) => {
        timer = setTimeout(() => reject(new Error(`no data for ${silenceMs / 1_000} s`)), silenceMs);
      });
      const { done, value } = await Promise.race([reader.read(), silence]).finally(() => clearTimeout(timer));
      if (done) return;
      yield value;
    }
  } catch (error) {
    throw new UnreachableError(`The connection to ${server} failed: ${describeReason(error)}.`, {
      hint: 'To resume, repeat the command.',
      cause: error,
    });
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

async function asText(response: Response, server: string): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of readPieces(response, server)) {
    bytes += piece.length;
    if (bytes > answerBytesMax) throw new CliError(`The answer of ${server} is larger than 64 MiB.`);
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString('utf8');
}

async function getFailureCode(response: Response, server: string): Promise<CliError> {
  const { status, headers } = response;
  if (status >= 300 && status < 400) {
    const target = headers.get('location') ?? 'another address';
    return new CliError(`${server} redirects to ${target}. Keys are not sent to redirect targets.`, {
      hint: 'Use that address as the server.',
    });
  }
  const text = await asText(response, server).catch(() => '');
  let error: { message?: unknown; code?: unknown } | undefined;
  try {
    ({ error } = JSON.parse(text) as { error?: typeof error });
  } catch {
    error = undefined;
  }
  const seconds = Number(headers.get('retry-after') ?? Number.NaN);
  return new ApiError(
    {
      status,
      code: typeof error?.code === 'string' ? error.code : null,
      message: typeof error?.message === 'string' ? error.message : `${server} answered with status ${status}.`,
      requestId: headers.get('x-request-id'),
      path: new URL(response.url).pathname.slice(new URL(server).pathname.replace(/\/$/, '').length),
    },
    Number.isFinite(seconds) ? seconds * 1_000 : null,
  );
}

/** Whether to retry. Every call is idempotent: a GET, a PUT or DELETE, or a POST with an Idempotency-Key. */
const isRetryable = (error: unknown): boolean =>
  error instanceof ApiError
    ? [429, 502, 503, 504].includes(error.status)
    : error instanceof UnreachableError &&
      !/ECONNREFUSED|ENOTFOUND|EAI_AGAIN|certificate|do not connect to that port/i.test(error.message);

const causeOf = (error: unknown): unknown => (error instanceof Error ? error.cause : undefined);

/** Describes a connection problem: fetch itself only reports "fetch failed". */
function describeReason(error: unknown): string {
  const cause = causeOf(error);
  const inner = cause instanceof AggregateError ? cause.errors[0] : cause;
  const reason: unknown = inner instanceof Error ? inner : error;
  if (!(reason instanceof Error)) return String(reason);
  if (reason.message === 'bad port') return 'HTTP clients do not connect to that port';
  const { code } = reason as NodeJS.ErrnoException;
  const known: Record<string, string> = {
    ECONNREFUSED: 'connection refused (ECONNREFUSED)',
    ENOTFOUND: 'unknown host (ENOTFOUND)',
    ECONNRESET: 'the connection was reset (ECONNRESET)',
    UND_ERR_SOCKET: 'the connection was closed',
  };
  return (code === undefined ? undefined : known[code]) ?? reason.message.replace(/\.$/, '');
}
