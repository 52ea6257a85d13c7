import type { Kysely } from 'kysely';
import { listCircuits as readCircuits, type CircuitRow } from '#libs/calls/protect/traffic/shared-circuits.ts';
import { listProviderLimits as readLimits, type ProviderLimitRow } from '#libs/calls/protect/traffic/shared-limits.ts';
import { CircuitList, type CircuitObject } from '#libs/contracts/configs/circuits.ts';
import { ProviderLimitList, type ProviderLimitObject } from '#libs/contracts/provider-limits.ts';
import type { Database } from '#libs/database/schema.ts';
import { callerOf } from '#libs/http/request-context.ts';
import type { Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';

type Deps = { db: Kysely<Database>; clock: Clock };

/** What this installation knows about the state of the workspace's providers. */
export const providerStateRoutes = (deps: Deps): Route[] => [listCircuits(deps), listProviderLimits(deps)];

/** GET /v1/admin/circuits. Open circuits of the workspace, as shared by all processes, newest first, at most 1,000. */
function listCircuits({ db, clock }: Deps): Route {
  return {
    method: 'GET',
    path: '/v1/admin/circuits',
    operationId: 'listCircuits',
    summary: 'List open and half-open circuits',
    description: 'Lists the targets of the workspace that failed too often. No process calls them until `open_until`.',
    tag: 'Administration',
    scope: 'providers.read',
    responses: { 200: { description: 'All open and half-open circuits of the workspace.', schema: CircuitList } },
    handler: async (request, response) => {
      const rows = await readCircuits(db, callerOf(request).workspaceId);
      const now = clock.now();
      response.json({ object: 'list', data: rows.map((row) => toCircuit(row, now)), has_more: false });
    },
  };
}

const seconds = (date: Date): number => Math.floor(date.getTime() / 1_000);

const toCircuit = (row: CircuitRow, now: number): CircuitObject => ({
  id: row.id,
  object: 'circuit',
  provider: row.provider,
  virtual_key: row.label,
  model: row.model,
  state: row.openUntil.getTime() > now ? 'open' : 'half_open',
  opened_at: seconds(row.openedAt),
  open_until: seconds(row.openUntil),
  failures: row.failures,
  reason: row.reason,
});

/** GET /v1/admin/provider-limits. What providers reported of their limits to any process within a day, newest first, at most 200. */
function listProviderLimits({ db, clock }: Deps): Route {
  return {
    method: 'GET',
    path: '/v1/admin/provider-limits',
    operationId: 'listProviderLimits',
    summary: 'List the rate limits that providers reported',
    description:
      'For each credential and model, returns the limit, the remaining quota at `reported_at`, and how long calls wait ' +
      'after a 429. Includes up to 200 reports from the last 24 hours, from all processes. For information only.',
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
