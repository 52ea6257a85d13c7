import type { Readable } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import type { ChildLog } from '../../platform/processes/supervise.ts';
import { readLogLine, severe } from '../files/log-line.ts';
import type { LogFile } from '../files/log-file.ts';

type Options = {
  name: string;
  file: LogFile;
  /** Gets each warning or error as one readable line. */
  onWarning: (text: string) => void;
  /** Longer lines are cut, so that memory stays bounded. */
  lineLengthMax?: number;
  /**
   * Warnings shown per ten seconds. The rest are only written to the file, so that an outage does not flood the
   * terminal.
   */
  warningsMax?: number;
  now?: () => number;
};

const windowMs = 10_000;
const lastLinesMax = 12;

/** Writes all output of a child process to its file, line by line, and also shows warnings and errors. */
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
    stream.on('error', () => {}); // The exit of the child process is reported instead.
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
