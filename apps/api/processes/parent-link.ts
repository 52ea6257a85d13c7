import type { Worker } from 'node:cluster';
import type { Registry } from 'prom-client';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Readiness } from '../../platform/operations/operational-routes.ts';
import { openChannel } from './channel.ts';

/** What one of several API processes shares with the others through their parent. */
export type ParentLink = {
  /** Whether `npm start` started the parent. */
  isStandalone: boolean;
  /** The metrics of all API processes together. */
  renderMetrics: HttpMetrics['renderMetrics'];
  /** From now on, the parent can read the state of this process. */
  report(state: { registry: Registry; checkReadiness: () => Promise<Readiness> }): void;
};

/** The parent collects the metrics of all processes first. */
const metricsWaitMs = 5_000;
const startWaitMs = 30_000;

/** Connects a process that compose-processes.ts has started to its parent. */
export async function linkToParent(worker: Worker): Promise<ParentLink> {
  // Otherwise Node ends this process immediately when its parent dies. libs/kernel/lifecycle.ts stops it in order.
  worker.exitedAfterDisconnect = true;
  let state: Parameters<ParentLink['report']>[0] | undefined;
  const ask = openChannel(worker, {
    alive: async () => true,
    metrics: async () => state?.registry.getMetricsAsJSON(),
    readiness: async () => state?.checkReadiness(),
  });
  return {
    isStandalone: (await ask('standalone', startWaitMs)) === true,
    async renderMetrics() {
      const rendered = await ask('metrics', metricsWaitMs);
      if (rendered !== undefined) return rendered as Awaited<ReturnType<HttpMetrics['renderMetrics']>>;
      throw new GatewayError('unavailable', null, 'The metrics could not be collected in time. Try again shortly.');
    },
    report(reported) {
      state = reported;
    },
  };
}
