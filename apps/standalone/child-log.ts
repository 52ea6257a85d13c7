import type { Readable } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import { readLogLine, severe } from './log-line.ts';
import type { LogFile } from './log-file.ts';

export type ChildLog = {
  /** Reads what a child that was just started writes, to its end. */
  attach(...streams: (Readable | null)[]): void;
  /** One line of the log, as if a child had written it. */
  line(text: string): void;
  /** The last lines of the child attached last, for people, oldest first. */
  lastLines(): string[];
};

type Options = {
  name: string;
  file: LogFile;
  /** Warnings and errors, for people, one line each. */
  onWarning: (text: string) => void;
  /** Longer lines are cut: a log line has no reason to be so long, and memory is bounded. */
  lineLengthMax?: number;
  /** Warnings shown in ten seconds; the others are in the file only, so that an outage does not flood the terminal. */
  warningsMax?: number;
  now?: () => number;
};

const windowMs = 10_000;
const lastLinesMax = 12;

/** Everything that a child writes goes to its file, line by line; what is a warning or worse is also shown. */
export function createChildLog(options: Options): ChildLog {
  const { name, file, onWarning, lineLengthMax = 65_536, warningsMax = 10, now = () => performance.now() } = options;
  let last: string[] = [];
  let windowStart = Number.NEGATIVE_INFINITY;
  let shown = 0;
  let lastShown = '';

  const warn = (text: string): void => {
    if (now() - windowStart >= windowMs) {
      windowStart = now();
      shown = 0;
    } else if (text === lastShown) return;
    lastShown = text;
    shown += 1;
    if (shown <= warningsMax) onWarning(`${name}: ${text}`);
    else if (shown === warningsMax + 1) onWarning(`${name}: more warnings are in ${file.file}`);
  };
  const line = (text: string): void => {
    if (text.trim() === '') return;
    const cut = text.length > lineLengthMax ? `${text.slice(0, lineLengthMax)}…` : text;
    file.write(`${cut}\n`);
    const { level, words } = readLogLine(cut);
    last.push(words);
    if (last.length > lastLinesMax) last.shift();
    if (level >= severe.warn) warn(words);
  };

  const read = (stream: Readable): void => {
    const decoder = new StringDecoder('utf8');
    let rest = '';
    const take = (text: string): void => {
      const lines = (rest + text).split('\n');
      rest = lines.pop() ?? '';
      for (const each of lines) line(each);
      if (rest.length <= lineLengthMax) return;
      line(rest);
      rest = '';
    };
    stream.on('data', (chunk: Buffer) => take(decoder.write(chunk)));
    stream.on('end', () => {
      take(decoder.end());
      line(rest);
      rest = '';
    });
    stream.on('error', () => {}); // the child's exit tells more
  };

  return {
    line,
    lastLines: () => [...last],
    attach(...streams) {
      last = [];
      for (const stream of streams) if (stream) read(stream);
    },
  };
}
