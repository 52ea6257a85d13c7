import type { Request } from 'express';
import type { EventActor, EventMetadata } from '#libs/event-log/event.ts';
import { defaultTryMs, type CallIdentity } from '#libs/event-log/idempotency.ts';
import type { Caller, Principal } from '#libs/http/caller.ts';
import { getClientAddress } from '#libs/http/client-address.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

const idempotencyKeyLengthMax = 255;
/** The maximum length of a path in an event. It exceeds any path with a record's ID. */
const pathLengthMax = 500;

/**
 * Returns the identity by which repeats of this call are recognised: its Idempotency-Key or, because the SDKs send
 * none, their retry count and the same body. Throws invalid_request for a key that is too long.
 */
export function getCallIdentity(request: Request): Omit<CallIdentity, 'fingerprint'> {
  const { workspaceId, keyId } = getCaller(request);
  const { requestId, route } = getContext(request);
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
    retryCount: asCount(request.get('x-stainless-retry-count')),
    tryMsMax: tryMsMaxOf(request),
    requestId,
  };
}

const asCount = (text: string | undefined): number => (text !== undefined && /^\d{1,4}$/.test(text) ? Number(text) : 0);

/** The SDKs send their time limit in seconds: for one try (JavaScript) or for the wait for data (Python). */
function tryMsMaxOf(request: Request): number {
  const seconds = Number(request.get('x-stainless-timeout') ?? request.get('x-stainless-read-timeout'));
  return seconds > 0 ? Math.min(seconds, 86_400) * 1_000 : defaultTryMs;
}

/** Returns a principal in the form that events have. */
export function asActor({ organisationRole, ...principal }: Principal): NonNullable<EventActor['principal']> {
  return organisationRole === undefined ? principal : { ...principal, organisation_role: organisationRole };
}

/** Whether the caller is a key, or a user who signed in with a token. */
export const actorType = ({ keyId, principal }: Pick<Caller, 'keyId' | 'principal'>): 'api_key' | 'user' =>
  keyId === principal.id && principal.type === 'user' ? 'user' : 'api_key';

/** Returns who caused the events of this request, with which rights, and from where. */
export function toEventMetadata(request: Request): EventMetadata {
  const { requestId, traceId } = getContext(request);
  const { keyId, principal, workspaceId, scopes } = getCaller(request);
  const rights = { workspace_id: workspaceId, scopes: scopes === 'all' ? null : [...scopes] };
  const address = getClientAddress(request);
  return {
    actor: { type: actorType({ keyId, principal }), id: keyId, principal: asActor(principal), ...rights },
    request_id: requestId,
    trace_id: traceId,
    ...(address === null ? {} : { address }),
    method: request.method,
    path: request.path.slice(0, pathLengthMax),
  };
}
