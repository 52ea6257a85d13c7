import { createServer } from 'node:net';
import path from 'node:path';
import type { AddressInfo } from 'node:net';
import { promptOf } from './input-file.ts';
import { runLoad, type LoadFigures, type LoadOrder } from './load.ts';
import { readUsage, resetPeak } from './process-usage.ts';
import type { Cleanup, Stack } from './stack.ts';
import { startProcess, type BenchProcess } from './start-process.ts';
import { median } from './statistics.ts';

const targetNames = ['direct', 'dispatch', 'bare', 'sluice', 'portkey'] as const;
/** `direct`: no gateway. `bare` and `dispatch`: see bare-proxy.ts. */
type TargetName = (typeof targetNames)[number];

export type TargetFigures = {
  perSecond: number;
  p50Ms: number;
  p99Ms: number;
  /** At the modest rate. */
  modestP50Ms: number;
  modestP99Ms: number;
  /** Processor time of the gateway's process for one request, in microseconds. */
  cpuMicroseconds: number;
  peakBytes: number;
};

export type LiveFigures = { targets: Record<TargetName, TargetFigures>; modestPerSecond: number; concurrency: number };

export type LiveSize = { rounds: number; seconds: number; warmUpSeconds: number; modestSeconds: number };

type Target = { name: TargetName; process: BenchProcess; order: Pick<LoadOrder, 'origin' | 'headers'> };

const concurrency = 32;
const modestPerSecond = 200;
const requestBytes = 1_024;

/** The same chat request through each gateway to the same simulator, in interleaved rounds; figures are medians. */
export async function measureLive(
  stack: Stack,
  size: LiveSize,
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<LiveFigures> {
  const targets = await startTargets(stack, cleanup);
  const generator = await startProcess({
    name: 'load generator',
    script: 'test/bench/load-process.ts',
    environment: {},
    logFile: path.join(stack.directory, 'load.log'),
  });
  cleanup.add(() => generator.stop());

  const saturated = perTarget<LoadFigures[]>(() => []);
  const modest = perTarget<LoadFigures[]>(() => []);
  const cpu = perTarget<number[]>(() => []);
  for (const { process } of targets) await resetPeak(process.pid);
  for (let round = 0; round < size.rounds; round += 1) {
    for (const target of targets) {
      onProgress(`live round ${round + 1} of ${size.rounds}: ${target.name}`);
      // The first round of each also compiles its code.
      const warmUpSeconds = round === 0 ? size.warmUpSeconds * 3 : size.warmUpSeconds;
      const order = { ...orderFor(target), perSecond: null, warmUpSeconds, seconds: size.seconds };
      const { figures, atWarm } = await runLoad(generator, order, () => readUsage(target.process.pid));
      const after = await readUsage(target.process.pid);
      cpu[target.name].push(((after.cpuSeconds - atWarm.cpuSeconds) / figures.requests) * 1_000_000);
      saturated[target.name].push(figures);
    }
    for (const target of targets) {
      onProgress(`live round ${round + 1} of ${size.rounds}: ${target.name} at ${modestPerSecond} requests/s`);
      const order = {
        ...orderFor(target),
        perSecond: modestPerSecond,
        warmUpSeconds: size.warmUpSeconds / 2,
        seconds: size.modestSeconds,
      };
      modest[target.name].push((await runLoad(generator, order, async () => {})).figures);
    }
  }
  const figures = {} as Record<TargetName, TargetFigures>;
  for (const { name, process } of targets) {
    figures[name] = {
      perSecond: median(saturated[name].map((round) => round.perSecond)),
      p50Ms: median(saturated[name].map((round) => round.p50Ms)),
      p99Ms: median(saturated[name].map((round) => round.p99Ms)),
      modestP50Ms: median(modest[name].map((round) => round.p50Ms)),
      modestP99Ms: median(modest[name].map((round) => round.p99Ms)),
      cpuMicroseconds: median(cpu[name]),
      peakBytes: (await readUsage(process.pid)).residentPeakBytes,
    };
  }
  return { targets: figures, modestPerSecond, concurrency };
}

function perTarget<Value>(make: () => Value): Record<TargetName, Value> {
  return Object.fromEntries(targetNames.map((name) => [name, make()])) as Record<TargetName, Value>;
}

function orderFor({ order }: Target) {
  const frame = (content: string): string =>
    JSON.stringify({ model: 'sim-small', messages: [{ role: 'user', content }], temperature: 0, max_tokens: 256 });
  const body = frame(promptOf(1, requestBytes - frame('').length));
  return { ...order, path: '/v1/chat/completions', body, concurrency };
}

async function startTargets(stack: Stack, cleanup: Cleanup): Promise<Target[]> {
  const { api, apiUrl, adminKey, simulator, simulatorUrl, directory } = stack;
  const plain = { 'content-type': 'application/json', authorization: 'Bearer sk-upstream' };
  const startBare = async (mode: 'request' | 'dispatch'): Promise<{ process: BenchProcess; origin: string }> => {
    const process = await startProcess({
      name: `bare proxy (${mode})`,
      script: 'test/bench/bare-proxy.ts',
      args: [simulatorUrl, mode],
      environment: {},
      logFile: path.join(directory, `bare-${mode}.log`),
    });
    cleanup.add(() => process.stop());
    const [, origin = ''] = await process.waitForLog(/"url":"(http:[^"]+)"/);
    return { process, origin };
  };
  const bare = await startBare('request');
  const dispatch = await startBare('dispatch');
  const portkeyPort = await freePort();
  const portkey = await startProcess({
    name: 'portkey',
    script: 'node_modules/@portkey-ai/gateway/build/start-server.js',
    args: ['--headless', `--port=${portkeyPort}`],
    environment: { NODE_ENV: 'production' },
    logFile: path.join(directory, 'portkey.log'),
  });
  cleanup.add(() => portkey.stop());
  await portkey.waitForLog(/Ready for connections/);
  const portkeyHeaders = {
    ...plain,
    'x-portkey-provider': 'openai',
    'x-portkey-custom-host': `${simulatorUrl}/v1`,
  };
  const sluiceHeaders = { ...plain, authorization: `Bearer ${adminKey}`, 'x-gateway-virtual-key': 'simulator' };
  return [
    { name: 'direct', process: simulator, order: { origin: simulatorUrl, headers: plain } },
    { name: 'dispatch', process: dispatch.process, order: { origin: dispatch.origin, headers: plain } },
    { name: 'bare', process: bare.process, order: { origin: bare.origin, headers: plain } },
    { name: 'sluice', process: api, order: { origin: apiUrl, headers: sluiceHeaders } },
    {
      name: 'portkey',
      process: portkey,
      order: { origin: `http://127.0.0.1:${portkeyPort}`, headers: portkeyHeaders },
    },
  ];
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
