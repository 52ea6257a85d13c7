import createClient from 'openapi-fetch';
import type { paths } from '../../generated/api.ts';
import { serverPath } from './server-url.ts';

/** Longer than any answer that a page reads takes; the server ends analytics queries before this. */
const answerMs = 20_000;

/**
 * Stops reading if no answer begins in time, for example because the server is frozen. Changes are not aborted, because the
 * server could already have applied them.
 */
async function fetchInTime(request: Request): Promise<Response> {
  if (request.method !== 'GET') return await fetch(request);
  const late = new AbortController();
  const timer = setTimeout(
    () => late.abort(new DOMException('The server did not respond in time.', 'TimeoutError')),
    answerMs,
  );
  try {
    return await fetch(request, { signal: AbortSignal.any([request.signal, late.signal]) });
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The API of the server that served this page. The session cookie authenticates each request; the header shows that the
 * console sent it.
 */
const client = createClient<paths>({ baseUrl: serverPath, fetch: fetchInTime, headers: { 'x-sluice-console': '1' } });

/** The API's error response, or the reason why it did not answer (status 0). */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  readonly code: string | null;
  readonly requestId: string | null;

  constructor(status: number, code: string | null, message: string, requestId: string | null) {
    super(message);
    this.status = status;
    this.code = code;
    this.requestId = requestId;
  }
}

type Outcome<Data> = { data?: Data; error?: unknown; response: Response };

function noAnswer(cause: unknown): never {
  if (cause instanceof DOMException && cause.name === 'AbortError') throw cause;
  throw new ApiError(
    0,
    null,
    'The server is not responding. Check that it is running. This page retries automatically.',
    null,
  );
}

/** The data of a successful answer. Throws ApiError for any other answer. */
export async function answerOf<Data>(request: Promise<Outcome<Data>>): Promise<NonNullable<Data>> {
  const { data, error, response } = await request.catch(noAnswer);
  if (response.ok && data !== undefined && data !== null) return data;
  throw toApiError(response, error);
}

/** The error in an answer that was read as JSON. */
export function toApiError(response: Response, body: unknown): ApiError {
  const { message, code } = (body as { error?: { message?: string; code?: string | null } } | undefined)?.error ?? {};
  const text = message ?? `The server returned status ${response.status} ${response.statusText}.`;
  return new ApiError(response.status, code ?? null, text, response.headers.get('x-request-id'));
}

/** For streams and for routes whose answers the OpenAPI document does not describe: fetch with the console's header. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set('x-sluice-console', '1');
  const response = await fetchInTime(new Request(serverPath + path, { ...init, headers })).catch(noAnswer);
  if (response.ok) return response;
  throw toApiError(response, await response.json().catch(() => undefined));
}

export const api = client;
