import type { ProviderError } from './provider.ts';
import { parseJson, toRecord } from './turns/json-value.ts';

/**
 * Reads the error bodies that OpenAI-compatible servers send: OpenAI's own, `{error: "text"}`, `{message, code}`,
 * `{detail}`, `{fault}`, or something that is not JSON (a proxy's error page).
 */
export function decodeOpenAiError(status: number, body: string): ProviderError {
  const parsed = parseJson(body) ?? null;
  const outer = toRecord(parsed);
  const inner = toRecord(outer['error']);
  const source = Object.keys(inner).length > 0 ? inner : outer;
  const message =
    text(source['message']) ?? text(outer['error']) ?? describe(outer['detail']) ?? describe(outer['fault']);
  const code = source['code'];
  return {
    error: {
      message:
        message ?? (parsed === null && body.trim() !== '' ? body.trim() : `The provider returned status ${status}.`),
      type:
        text(source['type']) ??
        (status === 429 ? 'rate_limit_error' : status < 500 ? 'invalid_request_error' : 'server_error'),
      param: text(source['param']) ?? null,
      code: typeof code === 'number' ? String(code) : (text(code) ?? null),
    },
    ...(typeof code === 'number' && Number.isInteger(code) && code >= 400 && code <= 599 ? { status: code } : {}),
  };
}

function text(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

/** FastAPI's `detail` is a text or a list of problems. A list is passed on whole. */
function describe(value: unknown): string | undefined {
  if (value === undefined || value === null) return undefined;
  return text(value) ?? JSON.stringify(value);
}
