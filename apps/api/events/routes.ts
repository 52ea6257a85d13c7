import type { Route } from '#libs/http/route.ts';
import { auditRoutes, type AuditDeps } from './audit-routes.ts';
import { listAuditLogs } from './list-audit-logs.ts';
import { listEvents } from './list-events.ts';
import { diffEvents } from './diff-events.ts';
import { listRecords } from './list-records.ts';
import { replayEvents } from './replay-events.ts';
import { streamChanges } from './stream-changes.ts';
import { streamEvents } from './stream-events.ts';

export const eventTags = { Audit: 'The audit log and the event log.' };

type Deps = AuditDeps &
  Parameters<typeof listAuditLogs>[0] &
  Parameters<typeof listEvents>[0] &
  Parameters<typeof streamEvents>[0] &
  Parameters<typeof listRecords>[0] &
  Parameters<typeof streamChanges>[0];

export const eventRoutes = (deps: Deps): Route[] => [
  listAuditLogs(deps),
  listEvents(deps),
  streamEvents(deps),
  replayEvents(deps),
  listRecords(deps),
  diffEvents(deps),
  streamChanges(deps),
  ...auditRoutes(deps),
];
