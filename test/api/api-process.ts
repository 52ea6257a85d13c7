import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { onTestFinished } from 'vitest';
import type { TestPlatform } from '#test/platform.ts';

/**
 * One more API process of the platform, with memory and limits of its own; resolves with its base URL, which ends in
 * `/v1`. It is killed when the test is over.
 */
export async function startApiProcess(platform: TestPlatform, overrides: Record<string, string> = {}): Promise<string> {
  const { baseUrl, kill } = await startKillableApi(platform, overrides);
  onTestFinished(kill);
  return baseUrl;
}

/** The same, for a caller that kills it itself: nobody else does. */
export async function startKillableApi(
  { environment }: TestPlatform,
  overrides: Record<string, string> = {},
): Promise<{ baseUrl: string; kill: () => Promise<void>; signal: (name: NodeJS.Signals) => void }> {
  const api = spawn(process.execPath, ['apps/api/main.ts'], {
    env: { ...process.env, ...environment, SLUICE_LOG_LEVEL: 'info', ...overrides },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  for await (const line of createInterface(api.stdout)) {
    const { msg, url } = JSON.parse(line) as { msg: string; url?: string };
    if (msg === 'listening' && url !== undefined) {
      api.stdout.resume(); // or the pipe fills up and stops the process
      const kill = async (): Promise<void> => {
        if (api.exitCode !== null || api.signalCode !== null) return;
        api.kill('SIGKILL');
        await once(api, 'exit');
      };
      return { baseUrl: `${url}/v1`, kill, signal: (name) => void api.kill(name) };
    }
  }
  throw new Error('the API process ended before it listened');
}
