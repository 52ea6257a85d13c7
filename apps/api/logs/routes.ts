import type { Route } from '#libs/http/route.ts';
import { analyticsRoutes } from './analytics-routes.ts';
import { feedbackRoutes } from './feedback-routes.ts';
import { importLogs } from './import-logs.ts';
import { listLogs } from './list-logs.ts';
import { logExportRoutes } from './log-export-routes.ts';
import { retrieveLog } from './retrieve-log.ts';

export const logTags = {
  Logs: 'The request log: one record for each call.',
  Analytics: 'Usage, cost and errors of calls.',
  Feedback: 'Ratings of answers by users.',
};

type Deps = Parameters<typeof logExportRoutes>[0] &
  Parameters<typeof listLogs>[0] &
  Parameters<typeof importLogs>[0] &
  Parameters<typeof retrieveLog>[0] &
  Parameters<typeof analyticsRoutes>[0] &
  Parameters<typeof feedbackRoutes>[0];

export const logRoutes = (deps: Deps): Route[] => [
  // These precede the route of one record, whose path would match those of exports.
  ...logExportRoutes(deps),
  listLogs(deps),
  importLogs(deps),
  retrieveLog(deps),
  ...analyticsRoutes(deps),
  ...feedbackRoutes(deps),
];
