import { asRecord, readAnswerUsage, readFinishReason } from '#libs/calls/upstream/answers/usage.ts';
import type { CallOperation, Target } from '#libs/calls/call.ts';
import type { ImportedLog } from '#libs/contracts/logs/imported-logs.ts';
import { metadataText } from '#libs/contracts/scalars.ts';
import { operationPaths } from '#libs/providers/provider.ts';
import { providers } from '#libs/providers/provider-list.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { LoggedCall } from './logged-call.ts';

type Importer = { workspaceId: string; keyId: string | null; userId: string | null; requestId: string; nowMs: number };

/** A call that was made elsewhere, as if it had been made here with one attempt that ended now. */
export function toImportedCall({ request, response, metadata = {} }: ImportedLog, importer: Importer): LoggedCall {
  const { workspaceId, keyId, userId, requestId, nowMs } = importer;
  const url = new URL(request.url);
  const { trace_id, span_id, parent_span_id, span_name, ...others } = metadata;
  const pairs = Object.entries(others).map(([name, value]) => [name, metadataText(value)] as const);
  const provider = request.provider === undefined ? providerAt(url) : (findProvider(request.provider)?.id ?? null);
  const startedAtMs = nowMs - response.response_time;
  const { status } = response;
  return {
    kind: 'imported',
    url: addressOf(url),
    operation: operationAt(url),
    method: request.method,
    requestId,
    userId,
    trace: {
      traceId: textOf(trace_id),
      spanId: textOf(span_id),
      parentSpanId: textOf(parent_span_id),
      spanName: textOf(span_name),
    },
    call: {
      workspaceId,
      keyId,
      metadata: pairs.length === 0 ? null : Object.fromEntries(pairs),
      pathname: pathnameOf(url),
      target: targetOf(provider, request.provider, url),
      model: textOf(request.body['model']),
      earlierAttempts: [],
      request: { body: Buffer.from(JSON.stringify(request.body)) },
    },
    stream: request.body['stream'] === true,
    option: null,
    batch: null,
    startedAtMs,
    durationMs: response.response_time,
    end: {
      status,
      errorCode: status < 400 ? null : (textOf(asRecord(response.body['error'])['code']) ?? 'upstream_error'),
      attempts: [{ startedAt: startedAtMs, durationMs: response.response_time, status, errorCode: null }],
      usage: readAnswerUsage(response.body),
      responseModel: textOf(response.body['model']),
      finishReason: readFinishReason(response.body['choices']) ?? textOf(response.body['stop_reason']),
      providerRequestId: textOf(response.body['id']),
    },
  };
}

const textOf = (value: unknown): string | null => (typeof value === 'string' && value !== '' ? value : null);

/** Of the providers with an address of their own. */
const providerByHost = new Map(
  providers.flatMap(({ id, baseUrlOf }) => {
    const host = baseUrlOf({})?.host;
    return host === undefined ? [] : [[host, id] as const];
  }),
);

const providerAt = (url: URL): string | null => providerByHost.get(url.host) ?? null;

/** What is recorded of where the call went; nothing is ever sent there. */
function targetOf(provider: string | null, named: string | undefined, url: URL): Target {
  const id = provider ?? named ?? url.host;
  return { provider: id, label: id, baseUrl: url, apiKey: null, settings: {}, secrets: {}, secretOrigin: null };
}

/** Where the call went. Queries and user names are left out, because they can hold keys (Gemini's `?key=…`). */
const addressOf = ({ origin, pathname }: URL): string => `${origin}${pathname}`;

/** From the version on, as paths are recorded of calls through here: the rest is the provider's own. */
export function pathnameOf({ pathname }: URL): string {
  const at = pathname.search(/\/v\d+(?:beta)?\//);
  return at === -1 ? pathname : pathname.slice(at);
}

/** By the end of the path. Anything else is a chat: Anthropic's messages, Gemini's generateContent, Bedrock's converse. */
function operationAt({ pathname }: URL): CallOperation {
  const found = Object.entries(operationPaths).find(([, path]) => pathname.endsWith(path));
  return (found?.[0] ?? 'chat') as CallOperation;
}
