import { asRecord, readAnswerUsage, readFinishReason } from '#libs/calls/upstream/answers/usage.ts';
import type { CallOperation, Target } from '#libs/calls/call.ts';
import type { ImportedLog } from '#libs/contracts/logs/imported-logs.ts';
import { metadataText } from '#libs/contracts/scalars.ts';
import { operationPaths } from '#libs/providers/provider.ts';
import { providers } from '#libs/providers/provider-list.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { LoggedCall } from './logged-call.ts';

type Importer = { workspaceId: string; keyId: string | null; userId: string | null; requestId: string; nowMs: number };

/** A call that was made elsewhere, represented as a call with one attempt that ended now. */
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
    url: getRegionAddress(url),
    operation: operationAt(url),
    method: request.method,
    requestId,
    userId,
    trace: {
      traceId: asText(trace_id),
      spanId: asText(span_id),
      parentSpanId: asText(parent_span_id),
      spanName: asText(span_name),
    },
    call: {
      workspaceId,
      keyId,
      metadata: pairs.length === 0 ? null : Object.fromEntries(pairs),
      pathname: getVersionedPath(url),
      target: targetOf(provider, request.provider, url),
      model: asText(request.body['model']),
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
      errorCode: status < 400 ? null : (asText(asRecord(response.body['error'])['code']) ?? 'upstream_error'),
      attempts: [{ startedAt: startedAtMs, durationMs: response.response_time, status, errorCode: null }],
      usage: readAnswerUsage(response.body),
      responseModel: asText(response.body['model']),
      finishReason: readFinishReason(response.body['choices']) ?? asText(response.body['stop_reason']),
      providerRequestId: asText(response.body['id']),
    },
  };
}

const asText = (value: unknown): string | null => (typeof value === 'string' && value !== '' ? value : null);

/** Only providers that have a fixed address. */
const providerByHost = new Map(
  providers.flatMap(({ id, baseUrlOf }) => {
    const host = baseUrlOf({})?.host;
    return host === undefined ? [] : [[host, id] as const];
  }),
);

const providerAt = (url: URL): string | null => providerByHost.get(url.host) ?? null;

/** The recorded destination of the call. No request is ever sent there. */
function targetOf(provider: string | null, named: string | undefined, url: URL): Target {
  const id = provider ?? named ?? url.host;
  return { provider: id, label: id, baseUrl: url, apiKey: null, settings: {}, secrets: {}, secretOrigin: null };
}

/**
 * The address that was called. Queries and user names are left out, because they can contain keys (Gemini's `?key=…`).
 */
const getRegionAddress = ({ origin, pathname }: URL): string => `${origin}${pathname}`;

/**
 * The part from the version on, like the recorded paths of calls through this gateway. The part before it is specific
 * to the provider.
 */
export function getVersionedPath({ pathname }: URL): string {
  const at = pathname.search(/\/v\d+(?:beta)?\//);
  return at === -1 ? pathname : pathname.slice(at);
}

/**
 * Recognises the operation by the end of the path. Any other path is a chat: Anthropic's messages, Gemini's
 * generateContent, Bedrock's converse.
 */
function operationAt({ pathname }: URL): CallOperation {
  const found = Object.entries(operationPaths).find(([, path]) => pathname.endsWith(path));
  return (found?.[0] ?? 'chat') as CallOperation;
}
