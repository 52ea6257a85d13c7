import { spawn, spawnSync } from 'node:child_process';
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
  /** Runs on a terminal of this many columns, which `script` of util-linux makes: stdout is all that it shows, and stdin stays open. */
  terminal?: number;
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
    run: async (args, { env = {}, stdin, terminal, onStart } = {}) =>
      await new Promise<Ended>((resolve, reject) => {
        const words = [process.execPath, entry, ...args];
        const [program = '', ...rest] = terminal === undefined ? words : onTerminal(words, terminal);
        const child = spawn(program, rest, { cwd: folder, env: { ...variables, ...env } });
        let [stdout, stderr] = ['', ''];
        child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
        child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
        child.on('error', reject);
        child.on('close', (code) => resolve({ code, stdout, stderr }));
        child.stdin.on('error', () => undefined); // it may end without reading
        if (terminal === undefined) child.stdin.end(stdin ?? '');
        onStart?.(child);
      }),
    remove: () => rm(folder, { recursive: true, force: true }),
  };
}

/** Whether `terminal` can be used: not on every system. */
export const hasTerminal =
  spawnSync('script', ['--version'], { encoding: 'utf8' }).stdout?.includes('util-linux') ?? false;

const onTerminal = (words: readonly string[], columns: number): string[] => {
  const quoted = words.map((word) => `'${word.replaceAll("'", String.raw`'\''`)}'`).join(' ');
  return ['script', '--quiet', '--return', '--flush', '--command', `stty cols ${columns}; exec ${quoted}`, '/dev/null'];
};

/** Text with every id, address and time of a run replaced by a word that stays the same. */
export const stable = (text: string, platform: TestPlatform): string =>
  text
    .replaceAll(new URL(platform.baseUrl).origin, 'SERVER')
    .replaceAll(/\b(batch|file|req|vk|key|ws|cfg|[a-z]+)([_-])[0-9a-f]{32}\b/g, '$1$2ID')
    .replaceAll(/\b[0-9a-f]{32}\b/g, 'ID')
    .replaceAll(/\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?Z?)?/g, 'TIME')
    .replaceAll(/ +$/gm, '');
