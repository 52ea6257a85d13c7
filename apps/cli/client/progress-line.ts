import { isPlainTerminal } from './config.ts';
import { note, widthOfTerminal } from './output.ts';
import { cut, printable } from './table.ts';

/** One line of progress on stderr: drawn over itself on a terminal, otherwise a new line now and then. */
export type ProgressLine = {
  show(text: string): void;
  /** Takes the line away, for other output. */
  clear(): void;
};

/** Whether a line can be drawn over itself: on a terminal that obeys. */
const canDraw = (stream: NodeJS.WriteStream = process.stderr): boolean => stream.isTTY && !isPlainTerminal();

/** A terminal shows Ctrl-C as ^C. If that went to the next line, this one could not be taken away any more. */
const roomForInterrupt = 3;
const redrawMs = 100;
const plainEveryMs = 5_000;

export function createProgressLine(stream: NodeJS.WriteStream = process.stderr): ProgressLine {
  const isDrawn = canDraw(stream);
  // What takes no time needs no lines.
  let shownMs = isDrawn ? -Infinity : performance.now();
  let shown = '';
  return {
    show(text) {
      const nowMs = performance.now();
      if (nowMs - shownMs < (isDrawn ? redrawMs : plainEveryMs)) return;
      if (!isDrawn) {
        if (text !== shown) note(text);
      } else {
        stream.write(`\r\u001b[K${cut(printable(text), Math.max(10, widthOfTerminal(stream, 80) - roomForInterrupt))}`);
      }
      [shownMs, shown] = [nowMs, text];
    },
    clear() {
      if (isDrawn) stream.write('\r\u001b[K');
    },
  };
}

/** `[######------------------] `, shorter on a narrow terminal; nothing without room beside what is said, or in a log. */
export function barOf(done: number, total: number, columns = widthOfTerminal(process.stderr, 80)): string {
  const width = columns >= 70 ? 24 : columns >= 50 ? 10 : 0;
  if (width === 0 || !canDraw()) return '';
  const filled = total === 0 ? 0 : Math.floor((Math.min(done, total) / total) * width);
  return `[${'#'.repeat(filled)}${'-'.repeat(width - filled)}] `;
}
