import { isPlainTerminal } from '../server/config.ts';
import { note, widthOfTerminal } from './output.ts';
import { cut, printable } from './table.ts';

/** Progress on stderr: one redrawn line on a terminal, otherwise a line every five seconds. */
export type ProgressLine = {
  show(text: string): void;
  /** Writes a permanent line above the progress. */
  say(text: string): void;
  /** Removes the line to make room for other output. */
  clear(): void;
};

/** Whether the terminal can redraw a line. */
const canDraw = (stream: NodeJS.WriteStream = process.stderr): boolean => stream.isTTY && !isPlainTerminal();

/** A terminal shows Ctrl-C as ^C. If that wrapped to the next line, the progress line could not be removed. */
const roomForInterrupt = 3;
const redrawMs = 100;
const plainEveryMs = 5_000;

export function createProgressLine(stream: NodeJS.WriteStream = process.stderr): ProgressLine {
  return canDraw(stream) ? createDrawnLine(stream) : createPlainLines();
}

function createDrawnLine(stream: NodeJS.WriteStream): ProgressLine {
  let shownMs = -Infinity;
  const clear = (): void => void stream.write('\r\u001b[K');
  return {
    show(text) {
      const nowMs = performance.now();
      if (nowMs - shownMs < redrawMs) return;
      stream.write(`\r\u001b[K${cut(printable(text), Math.max(10, widthOfTerminal(stream, 80) - roomForInterrupt))}`);
      shownMs = nowMs;
    },
    say(text) {
      clear();
      note(text);
      shownMs = -Infinity;
    },
    clear,
  };
}

/** A line every five seconds, even without changes, to show that the command still runs. */
function createPlainLines(): ProgressLine {
  let latest = '';
  let timer: NodeJS.Timeout | undefined;
  return {
    show(text) {
      latest = text;
      timer ??= setInterval(() => note(latest), plainEveryMs).unref();
    },
    say: note,
    clear() {
      clearInterval(timer);
      timer = undefined;
    },
  };
}

/** A bar such as `[######------------------] `: shorter on a narrow terminal, and empty on a very narrow one or in a log. */
export function barOf(done: number, total: number, columns = widthOfTerminal(process.stderr, 80)): string {
  const width = columns >= 70 ? 24 : columns >= 50 ? 10 : 0;
  if (width === 0 || !canDraw()) return '';
  const filled = total === 0 ? 0 : Math.floor((Math.min(done, total) / total) * width);
  return `[${'#'.repeat(filled)}${'-'.repeat(width - filled)}] `;
}
