import path from 'node:path';
import { freePort } from '#test/free-port.ts';
import {
  concurrency,
  measureTargets,
  modestPerSecond,
  type LiveSize,
  type Target,
  type TargetFigures,
} from './measure-targets.ts';
import type { Cleanup, Stack } from './stack.ts';
import { startProcess, type BenchProcess } from './start-process.ts';

/** `direct`: no gateway. `bare` and `dispatch`: see bare-proxy.ts. */
type TargetName = 'direct' | 'dispatch' | 'bare' | 'sluice' | 'portkey';

/** The features of Sluice that are between the same client and the same simulator. */
type FeatureName = 'passThrough' | 'fallback' | 'transform' | 'cacheHit' | 'limited';

export type LiveFigures = { targets: Record<TargetName, TargetFigures>; modestPerSecond: number; concurrency: number };
export type FeatureFigures = Record<FeatureName, TargetFigures>;

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

/** What a config, a translation, a cached answer and three policies add to a call that passes through. */
export async function measureFeatures(
  stack: Stack,
  size: LiveSize,
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<FeatureFigures> {
  const { api, apiUrl, adminKey, simulatorUrl } = stack;
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${adminKey}` };
  const stored = await fetch(`${apiUrl}/v1/virtual-keys`, {
    method: 'POST',
    headers,
    body: JSON.stringify({
      name: 'Anthropic',
      slug: 'bench-anthropic',
      provider: 'anthropic',
      key: 'sk-upstream',
      custom_host: `${simulatorUrl}/v1`,
    }),
  });
  if (!stored.ok) throw new Error(`no virtual key: ${await stored.text()}`);
  const config = (value: object) => ({ ...headers, 'x-gateway-config': JSON.stringify(value) });
  const simulator = { virtual_key: 'simulator' };
  const through: Record<FeatureName, Record<string, string>> = {
    passThrough: { ...headers, 'x-gateway-virtual-key': 'simulator' },
    fallback: config({ strategy: { mode: 'fallback' }, targets: [simulator, simulator] }),
    transform: { ...headers, 'x-gateway-virtual-key': 'bench-anthropic' },
    limited: { ...headers, ...(await limitedHeaders(stack)) },
    cacheHit: config({ ...simulator, cache: { mode: 'simple', max_age: 3_600 } }),
  };
  const targets = (Object.keys(through) as FeatureName[]).map((name): Target<FeatureName> => ({
    name,
    process: api,
    order: { origin: apiUrl, headers: through[name] },
  }));
  return await measureTargets(targets, await startGenerator(stack, cleanup), size, onProgress);
}

/** A workspace with a budget in cents, one in tokens and a rate, none of which is ever used up. */
async function limitedHeaders({ apiUrl, adminKey }: Stack): Promise<Record<string, string>> {
  const post = async (key: string, path: string, body: object): Promise<Record<string, string>> => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
    const answer = await fetch(`${apiUrl}/v1${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`POST ${path}: ${await answer.text()}`);
    return (await answer.json()) as Record<string, string>;
  };
  const { id } = await post(adminKey, '/admin/workspaces', { name: 'limited' });
  const { key = '' } = await post(adminKey, '/api-keys', { name: 'limited', workspace_id: id });
  const policy = { conditions: [], group_by: [] };
  const budget = { ...policy, credit_limit: 1e12, periodic_reset: 'monthly' };
  await post(key, '/policies/usage-limits', { ...budget, type: 'cost' });
  await post(key, '/policies/usage-limits', { ...budget, type: 'tokens', group_by: [{ key: 'api_key' }] });
  await post(key, '/policies/rate-limits', { ...policy, type: 'requests', unit: 'rpm', value: 1e9 });
  return { authorization: `Bearer ${key}`, 'x-gateway-virtual-key': 'simulator' };
}

async function startGenerator({ directory }: Stack, cleanup: Cleanup): Promise<BenchProcess> {
  const generator = await startProcess({
    name: 'load generator',
    script: 'test/bench/load-process.ts',
    environment: {},
    logFile: path.join(directory, 'load.log'),
  });
  cleanup.add(() => generator.stop());
  return generator;
}

async function startTargets(stack: Stack, cleanup: Cleanup): Promise<Target<TargetName>[]> {
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
