export type Counts = { total: number; completed: number; failed: number };

export type Progress = {
  /** Shows the counts: updates one line on a terminal, otherwise prints a line every two seconds. */
  show(counts: Counts): void;
  /** Shows the final counts and ends the line. */
  end(counts: Counts): void;
};

const barWidth = 24;
const plainEveryMs = 2_000;

type Options = { stream: { isTTY?: boolean; write: (text: string) => unknown }; lines: number; now?: () => number };

/** A progress bar with lines per second, time left and failed lines. */
export function createProgress({ stream, lines, now = () => performance.now() }: Options): Progress {
  const startedAt = now();
  let printedAt = Number.NEGATIVE_INFINITY;
  const print = (counts: Counts, isLast: boolean): void => {
    const text = describeProgress({ ...counts, total: counts.total || lines }, now() - startedAt);
    if (stream.isTTY) stream.write(`\r${text}\u001b[K${isLast ? '\n' : ''}`);
    else if (isLast || now() - printedAt >= plainEveryMs) {
      printedAt = now();
      stream.write(`${text}\n`);
    }
  };
  return { show: (counts) => print(counts, false), end: (counts) => print(counts, true) };
}

/**
 * Pure. The rate is the average of the whole run, which does not jump with every settled chunk.
 * @testOnly
 */
export function describeProgress({ total, completed, failed }: Counts, elapsedMs: number): string {
  const settled = completed + failed;
  const share = total === 0 ? 0 : settled / total;
  const full = Math.floor(share * barWidth);
  const rate = elapsedMs === 0 ? 0 : (settled / elapsedMs) * 1_000;
  const left = rate === 0 ? '-' : `${Math.ceil((total - settled) / rate)} s`;
  return [
    `  [${'█'.repeat(full)}${'░'.repeat(barWidth - full)}]`,
    `${Math.floor(share * 100)}`.padStart(3) + ' %',
    `${count(settled)}/${count(total)} lines`,
    `${count(Math.round(rate))} lines/s`,
    `ETA ${left}`,
    `failed ${count(failed)}`,
  ].join('  ');
}

export const count = (value: number): string => value.toLocaleString('en-US');
