import type { Kysely } from 'kysely';
import { listProviderLimits as readLimits, type ProviderLimitRow } from '#libs/calls/protect/traffic/shared-limits.ts';
import { ProviderLimitList, type ProviderLimitObject } from '#libs/contracts/provider-limits.ts';
import type { Database } from '#libs/database/schema.ts';
import { callerOf } from '#libs/http/request-context.ts';
import type { Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';

/** GET /v1/admin/provider-limits. What providers reported of their limits to any process within a day, newest first, at most 200. */
export function listProviderLimits({ db, clock }: { db: Kysely<Database>; clock: Clock }): Route {
  return {
    method: 'GET',
    path: '/v1/admin/provider-limits',
    operationId: 'listProviderLimits',
    summary: 'List what providers said of their rate limits',
    tag: 'Administration',
    scope: 'providers.read',
    responses: { 200: { description: 'By credential and model, newest first.', schema: ProviderLimitList } },
    handler: async (request, response) => {
      const rows = await readLimits(db, callerOf(request).workspaceId);
      const now = clock.now();
      response.json({ object: 'list', data: rows.map((row) => toProviderLimit(row, now)), has_more: false });
    },
  };
}

const seconds = (date: Date): number => Math.floor(date.getTime() / 1_000);

const toProviderLimit = (row: ProviderLimitRow, now: number): ProviderLimitObject => ({
  id: row.id,
  object: 'provider_limit',
  provider: row.provider,
  virtual_key: row.label,
  model: row.model,
  limits: row.limits.map(({ of, limit, remaining, resetsAtMs }) => ({
    of,
    limit,
    remaining,
    resets_at: resetsAtMs === null ? null : Math.ceil(resetsAtMs / 1_000),
  })),
  waits_until:
    row.waitsUntil === null || row.waitsUntil.getTime() <= now ? null : Math.ceil(row.waitsUntil.getTime() / 1_000),
  reported_at: seconds(row.reportedAt),
});
