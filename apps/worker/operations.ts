import { Counter, Gauge } from 'prom-client';
import type { Slots } from '#libs/batches/slots.ts';
import { createHttpApp } from '#libs/http/create-http-app.ts';
import { createHttpServer } from '#libs/http/http-server.ts';
import { createMetrics } from '#libs/http/metrics.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { checkReadiness } from '../platform/check-readiness.ts';
import type { Platform } from '../platform/compose.ts';
import { registerPlatformMetrics } from '../platform/metrics.ts';
import { operationalRoutes } from '../platform/operational-routes.ts';

export type WorkerOperations = {
  part: Part;
  /** Counts a line whose call is over. */
  countLine: (outcome: 'succeeded' | 'failed') => void;
};

/** The worker's own /health and /metrics, where a port is given for them. It serves nothing else. */
export function createWorkerOperations(deps: {
  platform: Platform;
  slots: Slots;
  logger: Logger;
  port: number | undefined;
  host: string;
}): WorkerOperations {
  const { platform, slots, logger, port, host } = deps;
  const metrics = createMetrics();
  const registers = [metrics.registry];
  registerPlatformMetrics(metrics.registry, platform);
  const lines = new Counter({
    name: 'sluice_batch_lines_total',
    help: 'Batch lines called.',
    labelNames: ['outcome'],
    registers,
  });
  const inFlight: Gauge = new Gauge({
    name: 'sluice_worker_in_flight',
    help: 'What is in flight: calls, bytes of lines and results, and lines that wait for room.',
    labelNames: ['what'],
    registers,
    collect() {
      for (const [what, value] of Object.entries(slots.inFlight())) inFlight.set({ what }, value);
    },
  });
  let stopping = false;
  const routes: Route[] = operationalRoutes({
    metrics,
    checkReadiness: () =>
      checkReadiness({ db: platform.db, snapshot: platform.access.snapshot, isStopping: () => stopping }),
    openApi: () => toOpenApi(routes, { title: 'Sluice worker', description: 'Health and metrics.', baseUrl: '/' }),
  });
  const app = createHttpApp({
    routes,
    authenticate: () => {
      throw new GatewayError('forbidden', null, 'A worker serves no calls.');
    },
    logger,
  });
  const server = createHttpServer(app);
  return {
    countLine: (outcome) => lines.inc({ outcome }),
    part: {
      name: 'worker operations',
      async start() {
        if (port === undefined) return;
        const listening = await server.listen({ port, host });
        logger.info({ host, port: listening.port }, 'health and metrics');
      },
      async stop() {
        stopping = true;
        await server.stop(1_000);
      },
    },
  };
}
