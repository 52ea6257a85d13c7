import { createHttpApp } from '#libs/http/create-http-app.ts';
import { createHttpServer } from '#libs/http/http-server.ts';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { operationalRoutes, type Readiness } from './operational-routes.ts';

/**
 * Serves health and metrics, and nothing else, on a separate port if one is given. It is the first part of a process to
 * start and the last to stop, so that a liveness probe passes while the process waits for its database or drains.
 */
export function createOperationsListener(deps: {
  title: string;
  metrics: Pick<HttpMetrics, 'renderMetrics'>;
  checkReadiness: () => Promise<Readiness>;
  logger: Logger;
  /** 0 picks a free port; undefined serves nothing. */
  port: number | undefined;
  host: string;
}): Part {
  const { title, metrics, checkReadiness, logger, port, host } = deps;
  const routes: Route[] = operationalRoutes({
    metrics,
    checkReadiness,
    openApi: () => toOpenApi(routes, { title, description: 'Health and metrics.', baseUrl: '/' }),
  });
  const app = createHttpApp({
    routes,
    authenticate: () => {
      throw new GatewayError('forbidden', null, 'This port only serves health checks and metrics.');
    },
    logger,
  });
  const server = createHttpServer(app);
  return {
    name: 'operations listener',
    async start() {
      if (port === undefined) return;
      const listening = await server.listen({ port, host });
      logger.info({ host, port: listening.port }, 'health and metrics');
    },
    stop: () => server.stop(1_000),
  };
}
