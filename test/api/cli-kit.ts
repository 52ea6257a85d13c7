import { spawn, spawnSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

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
  /** A file or a device that gets stdout, as the shell's `>` does it. */
  redirectTo?: string;
  /** Gets the process, to end it. */
  onStart?: (child: ReturnType<typeof spawn>) => void;
};

const entry = path.resolve('apps/cli/main.ts');

/** A platform and a command line for it, from before the first to after the last test of a file. */
export type Setup = {
  readonly platform: TestPlatform;
  readonly cli: CommandLine;
  /** Writes a file into the folder of the command line; returns its name. */
  write: (name: string, content: string | Uint8Array) => Promise<string>;
  read: (name: string) => Promise<string>;
};

/** What a test file about the command line begins with. Options are those of the platform, and `key` of `openCommandLine`. */
export function setUp(options: Parameters<typeof startPlatform>[0] & { key?: boolean } = {}): Setup {
  const parts: { platform?: TestPlatform; cli?: CommandLine } = {};
  const startedPart = <Name extends keyof typeof parts>(name: Name): NonNullable<(typeof parts)[Name]> => {
    const part = parts[name];
    if (part === undefined) throw new Error(`there is no ${name} before the first test`);
    return part;
  };
  beforeAll(async () => {
    parts.platform = await startPlatform(options);
    parts.cli = await openCommandLine(parts.platform, options);
  });
  afterAll(async () => {
    await parts.cli?.remove();
    await parts.platform?.stop();
  });
  const pathOf = (name: string): string => path.join(startedPart('cli').folder, name);
  return {
    get platform() {
      return startedPart('platform');
    },
    get cli() {
      return startedPart('cli');
    },
    write: async (name, content) => {
      await writeFile(pathOf(name), content);
      return name;
    },
    read: async (name) => await readFile(pathOf(name), 'utf8'),
  };
}

/** `key`: false for a command line that knows neither server nor key. */
async function openCommandLine(platform: TestPlatform, { key = true }: { key?: boolean } = {}): Promise<CommandLine> {
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
    run: async (args, { env = {}, stdin, terminal, redirectTo, onStart } = {}) =>
      await new Promise<Ended>((resolve, reject) => {
        const words = [process.execPath, entry, ...args];
        const redirected = ['sh', '-c', 'exec "$@" > "$0"', redirectTo ?? '', ...words];
        const plain = redirectTo === undefined ? words : redirected;
        const [program = '', ...rest] = terminal === undefined ? plain : onTerminal(words, terminal);
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
