import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { startGenerator } from './live-bench.ts';
import { measureTargets, throughSluice, type LiveSize, type Target, type TargetFigures } from './measure-targets.ts';
import type { Cleanup, Stack } from './stack.ts';

type Name = 'off' | 'metrics' | 'hundredth' | 'tenth' | 'all';
export type TelemetryFigures = Record<Name, TargetFigures>;

const sampled = (share: string): Record<string, string> => ({
  OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
  OTEL_TRACES_SAMPLER_ARG: share,
});
const variants: Record<Exclude<Name, 'off'>, Record<string, string>> = {
  metrics: { OTEL_TRACES_EXPORTER: 'none' },
  hundredth: sampled('0.01'),
  tenth: sampled('0.1'),
  all: {},
};

/**
 * The same calls through an API without OpenTelemetry, and through others that send metrics alone, or metrics and the spans of a
 * hundredth, a tenth, or all of the calls, to a collector that takes everything.
 */
export async function measureTelemetry(
  stack: Stack,
  size: LiveSize,
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<TelemetryFigures> {
  const collector = await startCollector(cleanup);
  const targets: Target<Name>[] = [{ name: 'off', process: stack.api, order: throughSluice(stack) }];
  for (const [name, environment] of Object.entries(variants) as [Name, Record<string, string>][]) {
    const { api, url } = await stack.startApi(`api-${name}`, {
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
      ...environment,
    });
    targets.push({ name, process: api, order: throughSluice({ ...stack, apiUrl: url }) });
  }
  const figures = await measureTargets(targets, await startGenerator(stack, cleanup), size, onProgress);
  if (collector.bytes('/v1/traces') === 0) throw new Error('the collector got no spans');
  return figures;
}

/** Takes what is exported, and counts its bytes. */
async function startCollector(cleanup: Cleanup): Promise<{ url: string; bytes: (path: string) => number }> {
  const taken = new Map<string, number>();
  const server = createServer((request, response) => {
    const path = request.url ?? '';
    request.on('data', (chunk: Buffer) => taken.set(path, (taken.get(path) ?? 0) + chunk.length));
    request.on('end', () => response.setHeader('content-type', 'application/json').end('{}'));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  cleanup.add(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, bytes: (path) => taken.get(path) ?? 0 };
}
