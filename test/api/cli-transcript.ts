import path from 'node:path';
import { version } from '#libs/kernel/version.ts';
import type { RunOptions, Setup } from './cli-kit.ts';

/** A command of a transcript: its words, or more. */
export type Step =
  | readonly string[]
  | (Pick<RunOptions, 'env' | 'stdin' | 'terminal'> & {
      args: readonly string[];
      /** What the transcript says about the circumstances. */
      note?: string;
      /** Ctrl-C is pressed when this has been printed. */
      interruptAfter?: string;
    });

export const golden = (name: string): string => path.resolve('test/fixtures/command-line', `${name}.txt`);

/** Runs commands one after the other and returns what a person would see: each command, what it printed, and how it ended. */
export async function transcriptOf(at: Setup, steps: readonly Step[]): Promise<string> {
  let transcript = '';
  for (const step of steps) {
    const { args, note, interruptAfter, ...options } = 'args' in step ? step : { args: step };
    let seen = '';
    let isInterrupted = false;
    const { code, stdout, stderr } = await at.cli.run(args, {
      ...options,
      env: { NO_COLOR: '1', ...options.env },
      onStart: (child) => {
        if (interruptAfter === undefined) return;
        for (const stream of [child.stdout, child.stderr]) {
          stream?.on('data', (text: string) => {
            seen += text;
            if (isInterrupted || !seen.includes(interruptAfter)) return;
            isInterrupted = true;
            if (options.terminal === undefined) child.kill('SIGINT');
            else child.stdin?.write('\u0003'); // what a terminal makes of Ctrl-C
          });
        }
      },
    });
    const circumstances = [
      ...(options.terminal === undefined ? [] : [`on ${options.terminal} columns`]),
      ...(interruptAfter === undefined ? [] : ['and then Ctrl-C']),
      ...(note === undefined ? [] : [note]),
    ];
    const errors = stderr.replaceAll(/^(?=.)/gm, '! ');
    transcript +=
      `$ sluice ${args.join(' ')}${circumstances.length === 0 ? '' : `   # ${circumstances.join(', ')}`}\n` +
      `${stdout}${errors}${code === 0 ? '' : `exit ${code}\n`}\n`;
  }
  return steady(transcript, at);
}

/**
 * Text without what differs from run to run. What stands in columns keeps its width: ids become numbers in the order in which
 * they appear, and times have zeros for digits.
 */
function steady(text: string, { platform, cli }: Setup): string {
  const ids = new Map<string, string>();
  const numbered = (id: string): string => {
    const number = ids.get(id) ?? String(ids.size + 1).padStart(32, '0');
    ids.set(id, number);
    return number;
  };
  return (
    text
      // Of a terminal: the last state of a line that was drawn over itself.
      .replaceAll('\r\n', '\n')
      .split('\n')
      .map((line) => line.split('\r\u001b[K').at(-1) ?? '')
      .join('\n')
      .replaceAll('^C', '')
      .replaceAll(new URL(platform.baseUrl).origin, 'SERVER')
      .replaceAll(cli.folder, 'HOME')
      .replaceAll(platform.dataDir, 'DATA')
      .replaceAll(version, 'VERSION')
      .replaceAll(/(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])/g, numbered)
      .replaceAll(/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g, 'UUID')
      .replaceAll(/\b[0-9a-f]{64}\b/g, 'SHA256')
      .replaceAll(/\b[12]\d{9}\b/g, 'SECONDS')
      .replaceAll(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z/g, 'TIME')
      .replaceAll(/\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?/g, (time) => time.replaceAll(/\d/g, '0'))
      .replaceAll(/\b\d{4}-\d\d-\d\d\.[0-9a-f]{12}\b/g, 'PRICES')
      .replaceAll(/\bin \d+(?:\.\d+)? (?:m?s|min)\b/g, 'in DURATION')
      .replaceAll(/"(\w*duration_ms|\w+_time)":[\d.]+/g, '"$1":MS')
      .replaceAll(/^(\S*(?:_ms|_time|Time) +)[\d.]+$/gm, '$1MS')
      // The column of milliseconds, which is as wide as the slowest call.
      .replaceAll(/^TIME( +)STATUS +MS/gm, 'TIME$1STATUS  MS')
      .replaceAll(/^(0000-00-00 \S+ +\d{3}) +\d+( +[$-])/gm, '$1  MS$2')
  );
}
