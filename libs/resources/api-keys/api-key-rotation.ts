import { z } from 'zod';
import { RotateApiKeyRequest, RotatedApiKey } from '#libs/contracts/people/api-keys.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { Caller } from '#libs/http/caller.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { createGatewayKey, hashKey } from '#libs/identity/gateway-key.ts';
import { refuseLongerLife, refuseMoreRights, refuseStronger } from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { expiryMs, madeWith, type ApiKeyData } from './api-key-data.ts';
import type { ResourceStore, RouteKit } from '#libs/records/kit.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import { readMadeWith } from '#libs/people/users/made-with-value.ts';
import { refuseLimited } from './refuse-limited.ts';
import type { ResourceEvent, ResourceRow } from '#libs/records/resource-row.ts';

const dayMs = 86_400_000;
/** Applies if neither the request nor the key's policy sets a period: a working day to deploy the new key everywhere. */
const transitionMsDefault = dayMs;
/**
 * How many replaced keys can work in addition to the newest one. Each was promised its time, so a further rotation is
 * refused instead.
 */
const previousMax = 10;

type Policy = NonNullable<ApiKeyData['rotation_policy']>;
type WantedPolicy = {
  rotation_period?: 'weekly' | 'monthly' | null | undefined;
  next_rotation_at?: Date | null | undefined;
  key_transition_period_ms?: number | undefined;
};

/** The rotation policy to store. Throws invalid_request for a next rotation in the past, unless it was stored before. */
export function readRotationPolicy(wanted: WantedPolicy | null, before: Policy | null, now: Date): Policy | null {
  if (wanted === null) return null;
  const { rotation_period: period = null, next_rotation_at: at, key_transition_period_ms: transitionMs } = wanted;
  const next = at?.toISOString() ?? (period && after(now, period).toISOString());
  if (at && at <= now && next !== before?.next_rotation_at) {
    const message = `Invalid 'rotation_policy.next_rotation_at': ${at.toISOString()} is in the past (it is now ${now.toISOString()}).`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'rotation_policy.next_rotation_at' });
  }
  return {
    rotation_period: period,
    next_rotation_at: next,
    key_transition_period_ms: transitionMs ?? transitionMsDefault,
  };
}

/** One period later, in UTC; a month after the 31st is the last day of the next month. */
function after(time: Date, period: 'weekly' | 'monthly'): Date {
  if (period === 'weekly') return new Date(time.getTime() + 7 * dayMs);
  const next = new Date(time);
  next.setUTCMonth(next.getUTCMonth() + 1);
  if (next.getUTCDate() !== time.getUTCDate()) next.setUTCDate(0);
  return next;
}

/** When the last replaced key stops working, ISO 8601; null if none works at `nowMs`. */
export function keyTransitionEnd({ previous = [] }: ApiKeyData, nowMs: number): string | null {
  const ends = previous.map(({ expires_at: end }) => end).filter((end) => Date.parse(end) > nowMs);
  return ends.toSorted().at(-1) ?? null;
}

/**
 * Returns the event that replaces a key, the digests of its previous values, and the time when the last of them stops
 * working. `isEnded`: none of them works. Throws forbidden as for a new key, and conflict if too many replaced keys would
 * still work.
 */
function rotate(
  { id, data }: ResourceRow<ApiKeyData>,
  { key, now, transitionMs, caller }: { key: Secret; now: Date; transitionMs: number | undefined; caller: Caller },
): { event: ResourceEvent; endsAt: string; replaced: string[]; isEnded: boolean } {
  refuseStronger(caller, { id, ...data }, 'rotate');
  refuseMoreRights(caller, data);
  refuseLongerLife(caller, expiryMs(data));
  const policy = data.rotation_policy ?? null;
  const lastsMs = transitionMs ?? policy?.key_transition_period_ms ?? transitionMsDefault;
  const endsAt = new Date(Math.min(now.getTime() + lastsMs, expiryMs(data))).toISOString();
  const working = (data.previous ?? []).filter(({ expires_at: end }) => Date.parse(end) > now.getTime());
  const replaced = { digest: data.digest, last_four: data.last_four, expires_at: endsAt };
  const previous = lastsMs === 0 ? [] : [replaced, ...working];
  if (previous.length > previousMax) {
    const message = `'${id}' already has ${working.length} earlier values that still work, the maximum. Wait until one of them expires, or end all of them with key_transition_period_ms: 0.`;
    throw new GatewayError('conflict', 'too_many_rotations', message);
  }
  const period = policy?.rotation_period ?? null;
  const rotated = {
    digest: hashKey(key.reveal()),
    last_four: key.lastFour(),
    first_digest: data.first_digest ?? data.digest,
    previous,
    rotated_by: caller.principal.id,
    made_with: madeWith(caller),
    ...(policy && {
      rotation_policy: { ...policy, next_rotation_at: period && after(now, period).toISOString() },
      rotation_due_at: null,
    }),
  };
  return {
    event: { type: 'api_key.rotated', data: rotated },
    endsAt,
    replaced: [data.digest, ...working.map(({ digest }) => digest)],
    isEnded: lastsMs === 0,
  };
}

/** POST /v1/api-keys/{id}/rotate: creates a new key for the record; the previous one keeps working for a while. */
export const rotateRoute = (store: ResourceStore<ApiKeyData>, deps: KindDeps, kit: RouteKit): Route => ({
  method: 'POST',
  path: '/v1/api-keys/:id/rotate',
  operationId: 'rotateApiKey',
  summary: 'Replace the value of an API key; the previous value works for a transition period',
  description:
    'The new value is only in this answer. The previous value works until the transition period has passed; with 0, ' +
    'it stops immediately. `made_with_previous` lists what earlier values created. With 0, pending invites among them ' +
    'are cancelled; otherwise their links stop working at the end of the transition.',
  example: { key_transition_period_ms: 3_600_000 },
  errors: {
    too_many_rotations: 'too many earlier values still work',
    insufficient_scope: 'the key has more rights than the key of the request',
  },
  ...kit.write,
  responses: { 200: { description: 'The new key, which is shown only once.', schema: RotatedApiKey } },
  ...withInput(
    {
      params: z.object({ id: z.string() }),
      query: z.object({ workspace_id: z.string().max(200).optional() }),
      body: RotateApiKeyRequest,
    },
    async ({ query, body }, request, response) => {
      const record = await kit.recordOf(request, query);
      const { caller, metadata } = kit.actorOf(request);
      const key = createGatewayKey();
      let rotated: ReturnType<typeof rotate> | undefined;
      const { id } = await store.change(record, metadata, async (unit, row) => {
        if (row.id !== caller.keyId) await refuseLimited({ unit, caller }, 'replace another key');
        rotated = rotate(row, { key, now: unit.now, transitionMs: body?.key_transition_period_ms, caller });
        return [rotated.event];
      });
      const { replaced = [], endsAt = '', isEnded = false } = rotated ?? {};
      // Records created with the key can be in any workspace, or belong to the organisation.
      const made = await asSystem(() => readMadeWith(deps, replaced, isEnded ? metadata : null));
      response.setHeader('cache-control', 'no-store');
      response.json({
        id,
        object: 'api-key',
        key: key.reveal(),
        key_transition_expires_at: endsAt,
        made_with_previous: made,
      });
    },
  ),
});
