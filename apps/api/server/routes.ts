import type { Route } from '#libs/http/route.ts';
import { consoleRoutes } from './console-routes.ts';
import { docsRoutes } from './docs-routes.ts';
import { systemRoutes } from './system-routes.ts';
import type { Kysely } from 'kysely';
import { listCircuits as readCircuits, type CircuitRow } from '#libs/calls/protect/traffic/shared-circuits.ts';
import { CircuitList, type CircuitObject } from '#libs/contracts/configs/circuits.ts';
import type { Database } from '#libs/database/schema.ts';
import { getCaller } from '#libs/http/request-context.ts';
import type { Clock } from '#libs/kernel/clock.ts';

export const serverTags = {
  Administration: 'The state of this installation.',
  Operations: 'Health, metrics and this document.',
};

export const serverRoutes = (
  deps: Parameters<typeof listCircuits>[0] & Parameters<typeof systemRoutes>[0],
): Route[] => [listCircuits(deps), ...systemRoutes(deps)];

/** Pages and their files, which need no key. */
export const pageRoutes = (): Route[] => [...docsRoutes(), ...consoleRoutes()];

type Deps = { db: Kysely<Database>; clock: Clock };

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
      const rows = await readCircuits(db, getCaller(request).workspaceId);
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
