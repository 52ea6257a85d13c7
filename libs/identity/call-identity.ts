import type { Request } from 'express';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { RequestCredentials } from '#libs/access/request-credentials.ts';
import { defaultTryMs, fingerprintOf, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { clientAddressOf } from '#libs/http/client-address.ts';
import { jsonBodyOf } from '#libs/http/json-body.ts';
import { callerOf, contextOf } from '#libs/http/request-context.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

const idempotencyKeyLengthMax = 255;
/** Of a path in an event: longer than any that names a record of ours. */
const pathLengthMax = 500;

/**
 * How a repeat of this call would be recognised: by its Idempotency-Key, or, as the SDKs send none, by their retry
 * count and the same body. Throws invalid_request for a key that is too long.
 */
export function callIdentityOf(request: Request): Omit<CallIdentity, 'fingerprint'> {
  const { workspaceId, keyId } = callerOf(request);
  const { requestId, route } = contextOf(request);
  const key = request.get('idempotency-key') ?? null;
  if (key !== null && (key === '' || key.length > idempotencyKeyLengthMax)) {
    const message = `The header Idempotency-Key must be 1 to ${idempotencyKeyLengthMax} characters long.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'Idempotency-Key' });
  }
  return {
    workspaceId,
    keyId,
    route: `${request.method} ${route ?? request.path}`,
    idempotencyKey: key,
    retryCount: countOf(request.get('x-stainless-retry-count')),
    tryMsMax: tryMsMaxOf(request),
    requestId,
  };
}

const countOf = (text: string | undefined): number => (text !== undefined && /^\d{1,4}$/.test(text) ? Number(text) : 0);

/** The SDKs tell their time limit in seconds: that of a try (JavaScript), or that of a silence (Python). */
function tryMsMaxOf(request: Request): number {
  const seconds = Number(request.get('x-stainless-timeout') ?? request.get('x-stainless-read-timeout'));
  return seconds > 0 ? Math.min(seconds, 86_400) * 1_000 : defaultTryMs;
}

/** What a repeat of a call has in common with it whose target is named outside of its body too: another is another call. */
export function fingerprintOfCall(request: Request, credentials: RequestCredentials): string {
  const { virtualKey, provider, customHost, config } = credentials;
  const place = JSON.stringify([virtualKey?.slug, provider, customHost, config?.value]);
  return fingerprintOf(Buffer.concat([jsonBodyOf(request).bytes, Buffer.from(place)]));
}

/** Who caused the events of this request, with which rights, and from where. */
export function eventMetadataOf(request: Request): EventMetadata {
  const { requestId, traceId } = contextOf(request);
  const { keyId, principal, workspaceId, scopes } = callerOf(request);
  const rights = { workspace_id: workspaceId, scopes: scopes === 'all' ? null : [...scopes] };
  const address = clientAddressOf(request);
  return {
    actor: { type: 'api_key', id: keyId, principal, ...rights },
    request_id: requestId,
    trace_id: traceId,
    ...(address === null ? {} : { address }),
    method: request.method,
    path: request.path.slice(0, pathLengthMax),
  };
}
