import createClient from 'openapi-fetch';
import type { paths } from '../../generated/api.ts';

/** The API of the server that this page came from. The session cookie signs each request in; the header says that it is ours. */
const client = createClient<paths>({ baseUrl: '', headers: { 'x-sluice-console': '1' } });

/** What the API answered instead of 2xx, or why it did not answer (status 0). */
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

/** The data of an answer. Throws ApiError for every other one. */
export async function answerOf<Data>(request: Promise<Outcome<Data>>): Promise<NonNullable<Data>> {
  const { data, error, response } = await request.catch((cause: unknown) => {
    if (cause instanceof DOMException && cause.name === 'AbortError') throw cause;
    throw new ApiError(
      0,
      null,
      'The server does not answer. Check that it runs; this page tries again by itself.',
      null,
    );
  });
  if (response.ok && data !== undefined && data !== null) return data;
  throw toApiError(response, error);
}

/** The error of an answer that was read as JSON. */
export function toApiError(response: Response, body: unknown): ApiError {
  const { message, code } = (body as { error?: { message?: string; code?: string | null } } | undefined)?.error ?? {};
  const text = message ?? `The server answered with ${response.status} ${response.statusText}.`;
  return new ApiError(response.status, code ?? null, text, response.headers.get('x-request-id'));
}

/** For routes whose answers the document does not describe, and for streams: fetch with the header of the console. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set('x-sluice-console', '1');
  const response = await fetch(path, { ...init, headers });
  if (response.ok) return response;
  throw toApiError(response, await response.json().catch(() => undefined));
}

export const api = client;
