import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { systemClock } from '#libs/kernel/clock.ts';
import { createRequestAnswerer } from './answer-request.ts';
import { readConfig } from './config.ts';
import type { SimulatorOptions } from './options.ts';
import { createStats, type StatsSnapshot } from './stats.ts';

export type Simulator = {
  /** Starts listening; `url` has no trailing slash and no /v1. Rejects if the address is in use. */
  start(): Promise<{ url: string }>;
  /** Stops listening, lets answers in flight finish for `drainMs`, then closes every connection. Idempotent. */
  stop(): Promise<void>;
  stats(): StatsSnapshot;
  resetStats(): void;
};

// Longer than any client keeps an idle connection, so that the server never closes first.
const keepAliveMs = 3_600_000;
// A test can send a body slowly on purpose, but a client that never finishes is disconnected.
const requestMs = 3_600_000;
const headersMs = 60_000;
const headerMaxBytes = 65_536;
const connectionsMax = 20_000;
const backlog = 4_096;
const sweepMs = 20;

/** A simulated provider: answers deterministically in any supported format, with configurable latency and faults. */
export function createSimulator(given: Partial<SimulatorOptions> = {}): Simulator {
  const defaults = { ...readConfig({}).simulator, port: 0, drainMs: 0, clock: systemClock, logger: undefined };
  const options: SimulatorOptions = { ...defaults, ...given };
  const stats = createStats({ countedKeysMax: options.countedKeysMax });
  const answerer = createRequestAnswerer({ options, stats });
  const server = createServer(
    {
      keepAliveTimeout: keepAliveMs,
      requestTimeout: requestMs,
      headersTimeout: headersMs,
      maxHeaderSize: headerMaxBytes,
    },
    answerer.answer,
  );
  server.maxConnections = connectionsMax;
  server.on('connection', (socket) => {
    stats.connected();
    socket.on('close', () => stats.disconnected());
  });
  let stopped: Promise<void> | undefined;

  const stop = async (): Promise<void> => {
    if (!server.listening) return;
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    // A keep-alive connection is idle after its last answer, and no other code would close it.
    const sweep = setInterval(() => server.closeIdleConnections(), sweepMs);
    const force = setTimeout(() => server.closeAllConnections(), options.drainMs);
    await closed;
    clearInterval(sweep);
    clearTimeout(force);
  };
  return {
    start: () =>
      new Promise((resolve, reject) => {
        server.once('error', reject);
        server.listen({ port: options.port, host: options.host, backlog }, () => {
          server.off('error', reject);
          resolve({ url: urlOf(server.address() as AddressInfo) });
        });
      }),
    stop: () => (stopped ??= stop()),
    stats: stats.snapshot,
    resetStats: answerer.resetStats,
  };
}

function urlOf({ address, family, port }: AddressInfo): string {
  return family === 'IPv6' ? `http://[${address}]:${port}` : `http://${address}:${port}`;
}
