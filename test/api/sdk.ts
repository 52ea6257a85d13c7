import diagnostics from 'node:diagnostics_channel';
import OpenAI, { toFile } from 'openai';
import OpenAI6, { toFile as toFile6 } from 'openai6';

export type Client = OpenAI;

/**
 * One major of the official package. The two differ in types that do not matter here, so the older one goes by the
 * newer one's.
 */
export type Sdk = { name: string; OpenAI: typeof OpenAI; toFile: typeof toFile };

/** Both majors, for `describe.each`. Their clients get a base URL and a key, and nothing else. */
export const sdks: readonly Sdk[] = [
  { name: 'openai 7', OpenAI, toFile },
  { name: 'openai 6', OpenAI: OpenAI6 as unknown as typeof OpenAI, toFile: toFile6 },
];

export type SentCall = { method: string; path: string; headers: string };

/**
 * Every HTTP call that this process sends to a server from now on, also what an SDK sends again by itself: seen on
 * Node's diagnostics channel, so that the client stays as it is.
 */
export function watchCalls(baseUrl: string): { calls: SentCall[]; to: (pattern: RegExp) => SentCall[] } {
  const { origin } = new URL(baseUrl);
  const calls: SentCall[] = [];
  diagnostics.subscribe('undici:request:create', (message) => {
    const { request } = message as {
      request: { origin: string | URL; method: string; path: string; headers: string[] | string };
    };
    if (String(request.origin).replace(/\/$/, '') !== origin) return;
    const headers = Array.isArray(request.headers) ? request.headers.join('\n') : request.headers;
    calls.push({ method: request.method, path: request.path, headers });
  });
  return { calls, to: (pattern) => calls.filter(({ method, path }) => pattern.test(`${method} ${path}`)) };
}

/** The error that a call ends with; fails when it does not fail. */
export async function getFailureCode(call: PromiseLike<unknown>): Promise<InstanceType<typeof OpenAI.APIError>> {
  try {
    await call;
  } catch (error) {
    return error as InstanceType<typeof OpenAI.APIError>;
  }
  throw new Error('the call was to fail and did not');
}
