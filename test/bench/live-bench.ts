import path from 'node:path';
import { freePort } from '#test/free-port.ts';
import {
  concurrency,
  measureTargets,
  modestPerSecond,
  throughSluice,
  type LiveSize,
  type Target,
  type TargetFigures,
} from './measure-targets.ts';
import type { Cleanup, Stack } from './stack.ts';
import { startProcess, type BenchProcess } from './start-process.ts';

/** `direct`: no gateway. `bare` and `dispatch`: see bare-proxy.ts. */
type TargetName = 'direct' | 'dispatch' | 'bare' | 'sluice' | 'portkey';

export type LiveFigures = { targets: Record<TargetName, TargetFigures>; modestPerSecond: number; concurrency: number };

/** The same chat request through each gateway to the same simulator. */
export async function measureLive(
  stack: Stack,
  size: LiveSize,
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<LiveFigures> {
  const targets = await startTargets(stack, cleanup);
  const generator = await startGenerator(stack, cleanup);
  return { targets: await measureTargets(targets, generator, size, onProgress), modestPerSecond, concurrency };
}

export async function startGenerator({ directory }: Stack, cleanup: Cleanup): Promise<BenchProcess> {
  const generator = await startProcess({
    name: 'load generator',
    script: 'test/bench/load-process.ts',
    environment: {},
    logFile: path.join(directory, 'load.log'),
  });
  cleanup.add(() => generator.stop());
  return generator;
}

const plain = { 'content-type': 'application/json', authorization: 'Bearer sk-upstream' };

export async function startBareProxy(
  { simulatorUrl, directory }: Stack,
  mode: 'request' | 'dispatch',
  cleanup: Cleanup,
): Promise<Omit<Target<string>, 'name'>> {
  const process = await startProcess({
    name: `bare proxy (${mode})`,
    script: 'test/bench/bare-proxy.ts',
    args: [simulatorUrl, mode],
    environment: {},
    logFile: path.join(directory, `bare-${mode}.log`),
  });
  cleanup.add(() => process.stop());
  const [, origin = ''] = await process.waitForLog(/"url":"(http:[^"]+)"/);
  return { process, order: { origin, headers: plain } };
}

async function startTargets(stack: Stack, cleanup: Cleanup): Promise<Target<TargetName>[]> {
  const { api, simulator, simulatorUrl, directory } = stack;
  const bare = await startBareProxy(stack, 'request', cleanup);
  const dispatch = await startBareProxy(stack, 'dispatch', cleanup);
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
  return [
    { name: 'direct', process: simulator, order: { origin: simulatorUrl, headers: plain } },
    { name: 'dispatch', ...dispatch },
    { name: 'bare', ...bare },
    { name: 'sluice', process: api, order: throughSluice(stack) },
    {
      name: 'portkey',
      process: portkey,
      order: { origin: `http://127.0.0.1:${portkeyPort}`, headers: portkeyHeaders },
    },
  ];
}
