import { note, widthOfTerminal } from './output.ts';

/** One line of progress on stderr: drawn over itself on a terminal, otherwise a new line now and then. */
export type ProgressLine = {
  show(text: string): void;
  /** Takes the line away, for other output. */
  clear(): void;
};

const redrawMs = 100;
const plainEveryMs = 5_000;

export function createProgressLine(stream: NodeJS.WriteStream = process.stderr): ProgressLine {
  // What takes no time needs no lines.
  let shownMs = stream.isTTY ? -Infinity : performance.now();
  let shown = '';
  return {
    show(text) {
      const nowMs = performance.now();
      if (nowMs - shownMs < (stream.isTTY ? redrawMs : plainEveryMs)) return;
      if (!stream.isTTY) {
        if (text !== shown) note(text);
      } else {
        stream.write(`\r\u001b[K${text.slice(0, Math.max(10, widthOfTerminal(stream, 80) - 1))}`);
      }
      [shownMs, shown] = [nowMs, text];
    },
    clear() {
      if (stream.isTTY) stream.write('\r\u001b[K');
    },
  };
}

const barWidth = 24;

/** `[######------------------]`; empty where nothing is to be done. */
export function barOf(done: number, total: number): string {
  const filled = total === 0 ? 0 : Math.floor((Math.min(done, total) / total) * barWidth);
  return `[${'#'.repeat(filled)}${'-'.repeat(barWidth - filled)}]`;
}

/** `45 s`, `3 min`, `2 h 5 min`. */
export function durationOf(seconds: number): string {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
