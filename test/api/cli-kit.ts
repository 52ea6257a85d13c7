import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestPlatform } from '#test/platform.ts';

export type Ended = { code: number | null; stdout: string; stderr: string };

/** The command line as a person has it: a folder for its files, and nothing of the environment that the tests run in. */
export type CommandLine = {
  folder: string;
  run: (args: readonly string[], options?: RunOptions) => Promise<Ended>;
  remove: () => Promise<void>;
};
export type RunOptions = {
  env?: Record<string, string>;
  stdin?: string;
  /** Gets the process, to end it. */
  onStart?: (child: ReturnType<typeof spawn>) => void;
};

const entry = path.resolve('apps/cli/main.ts');

/** `key`: false for a command line that knows neither server nor key. */
export async function openCommandLine(platform: TestPlatform, { key = true } = {}): Promise<CommandLine> {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-cli-'));
  const variables = {
    PATH: process.env['PATH'] ?? '',
    HOME: folder,
    TZ: 'UTC',
    NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'] ?? '',
    ...(key ? { SLUICE_URL: platform.baseUrl, SLUICE_API_KEY: platform.adminKey } : {}),
  };
  return {
    folder,
    run: async (args, { env = {}, stdin, onStart } = {}) =>
      await new Promise<Ended>((resolve, reject) => {
        const child = spawn(process.execPath, [entry, ...args], { cwd: folder, env: { ...variables, ...env } });
        let [stdout, stderr] = ['', ''];
        child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
        child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
        child.on('error', reject);
        child.on('close', (code) => resolve({ code, stdout, stderr }));
        child.stdin.on('error', () => undefined); // it may end without reading
        child.stdin.end(stdin ?? '');
        onStart?.(child);
      }),
    remove: () => rm(folder, { recursive: true, force: true }),
  };
}

/** Text with every id, address and time of a run replaced by a word that stays the same. */
export const stable = (text: string, platform: TestPlatform): string =>
  text
    .replaceAll(new URL(platform.baseUrl).origin, 'SERVER')
    .replaceAll(/\b(batch|file|req|vk|key|ws|cfg|[a-z]+)([_-])[0-9a-f]{32}\b/g, '$1$2ID')
    .replaceAll(/\b[0-9a-f]{32}\b/g, 'ID')
    .replaceAll(/\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?Z?)?/g, 'TIME')
    .replaceAll(/ +$/gm, '');
