import { exitImmediately, type Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import { paced } from '#libs/http/metrics.ts';
import type { Phase } from '../../platform/operations/check-readiness.ts';
import type { Readiness } from '../../platform/operations/operational-routes.ts';
import { createOperationsListener } from '../../platform/operations/operations-listener.ts';
import { probePort } from '../../platform/processes/probe-port.ts';
import type { ApiConfig } from '../config.ts';
import { createApiChild, type ApiChild } from './api-child.ts';
import { divideSettings } from './divide-settings.ts';
import { createMetricSums, type Metrics } from './sum-metrics.ts';

const checkAliveEveryMs = 10_000;

/**
 * Composes the parent of several API processes. It starts them, replaces one that ends, and serves the metrics and the
 * readiness of all of them on the operations port. Only its processes serve calls. `stopMs` is the time that a process can
 * take to stop.
 */
export function composeProcesses(config: ApiConfig, { logger, stopMs }: { logger: Logger; stopMs: number }): Part[] {
  const { PORT, HOST, SLUICE_OPERATIONS_PORT: operationsPort, SLUICE_OPERATIONS_HOST: operationsHost = HOST } = config;
  let port = PORT;
  let phase: Phase = 'starting';
  const started = Promise.withResolvers<void>();
  const sums = createMetricSums();
  const renderMetrics = paced(
    () => performance.now(),
    async () => {
      await Promise.all(children.map((child) => collectMetrics(child, sums)));
      return { contentType: 'text/plain; version=0.0.4; charset=utf-8', body: await sums.render() };
    },
  );
  const children: ApiChild[] = Array.from({ length: config.SLUICE_API_PROCESSES }, (_value, index) =>
    createApiChild({
      number: index + 1,
      environment: () => ({ ...divideSettings(config), PORT: String(port) }),
      answers: { standalone: async () => process.send !== undefined, metrics: renderMetrics },
      onExit: () => sums.end(index + 1),
      logger,
      stopDeadlineMs: stopMs,
      onStarted: () => {
        if (children.every((child) => child.hasStarted())) started.resolve();
      },
      onGiveUp: (reason) => started.reject(reason),
      mayGiveUp: () => phase === 'starting',
      isStopping: () => phase === 'stopping',
    }),
  );
  let checks: NodeJS.Timeout | undefined;
  const processes: Part = {
    name: 'API processes',
    async start(signal = new AbortController().signal) {
      // The processes would not notice another program that shares the port with them.
      port = await probePort(PORT, HOST);
      for (const child of children) child.start();
      await untilAborted(started.promise, signal, () => {});
      if (signal.aborted) return;
      phase = 'ok';
      checks = setInterval(() => void Promise.all(children.map((child) => child.checkAlive())), checkAliveEveryMs);
      logger.info({ port, processes: children.length }, 'all API processes are listening');
    },
    async stop() {
      phase = 'stopping';
      clearInterval(checks);
      const areClean = await Promise.all(children.map((child) => child.stop()));
      if (areClean.includes(false)) exitImmediately(logger, 'an API process had to be killed');
    },
  };
  const operations = createOperationsListener({
    title: 'Sluice API',
    metrics: { renderMetrics },
    checkReadiness: async () => await checkReadiness(children, phase),
    logger,
    port: operationsPort,
    host: operationsHost,
  });
  return [operations, processes];
}

/** Without an answer, the previous metrics of the process are used. */
async function collectMetrics(child: ApiChild, sums: ReturnType<typeof createMetricSums>): Promise<void> {
  const pid = child.pid();
  const metrics = await child.ask('metrics');
  if (metrics !== undefined && child.pid() === pid) sums.record(child.number, metrics as Metrics);
}

/**
 * The processes are ready if one of them has started, and all that have started are ready. The others do not listen yet,
 * and get no calls.
 */
async function checkReadiness(children: readonly ApiChild[], phase: Phase): Promise<Readiness> {
  const started = children.filter((child) => child.hasStarted());
  const states = await Promise.all(
    started.map(async (child) => ((await child.ask('readiness')) ?? hanging) as Readiness),
  );
  const own = phase === 'stopping' ? 'stopping' : started.length > 0 ? 'ok' : 'starting';
  const required: Record<string, string> = { process: own };
  for (const [name, state] of states.flatMap((each) => Object.entries(each.required))) {
    if ((required[name] ?? 'ok') === 'ok') required[name] = state;
  }
  const processes = `${started.length} of ${children.length}`;
  return { required, informative: { ...states[0]?.informative, processes } };
}

const hanging: Readiness = { required: { process: 'does not answer' }, informative: {} };
