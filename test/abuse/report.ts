import type { VictimFigures } from './rig/victim.ts';
import type { AttackFigures } from './run-attack.ts';

/** The result of one attack. */
export type AttackReport = {
  name: string;
  /** Why it was not possible here. */
  missing?: string;
  figures?: AttackFigures;
  /** The broken limits of the last try; empty when all held. */
  broken: readonly string[];
  tries: number;
};

const mebibyte = 1_048_576;

/** The table: for each attack, the results of the victim, of the processes, and of the attack itself. */
export function formatReports(reports: readonly AttackReport[]): string {
  const header = [
    'attack',
    'live p50',
    'live p99',
    'batch p50',
    'longest',
    'failed',
    'restarts',
    'peak MB api/worker',
    'busy cores api/worker',
    'loop p99',
    '',
    'what came of the attack',
  ];
  const rows = reports.map((report) => rowOf(report));
  const widths = header.map((name, column) =>
    Math.max(name.length, ...rows.map((cells) => (cells[column] ?? '').length)),
  );
  const format = (cells: readonly string[]): string =>
    cells
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd();
  return [format(header), ...rows.map(format)].join('\n');
}

function rowOf({ name, missing, figures, broken, tries }: AttackReport): string[] {
  if (figures === undefined)
    return [
      name,
      '',
      '',
      '',
      '',
      '',
      '',
      '',
      '',
      '',
      missing === undefined ? 'FAIL' : 'skipped',
      missing ?? broken.join('; '),
    ];
  const { alone, beside, crashes, peaks, load, outcome } = figures;
  const failed = beside.live.failed + beside.batches.failed;
  const tried = tries > 1 ? ` (try ${tries})` : '';
  return [
    name,
    change(alone, beside, (of) => of.live.p50Ms),
    change(alone, beside, (of) => of.live.p99Ms),
    change(alone, beside, (of) => of.batches.p50Ms),
    beside.batches.worstMs === null ? 'none' : `${(beside.batches.worstMs / 1_000).toFixed(1)} s`,
    `${failed} of ${beside.live.sent + beside.batches.sent}`,
    String(crashes.length),
    `${Math.round(peaks.api / mebibyte)} / ${Math.round(peaks.worker / mebibyte)}`,
    `${load.api.toFixed(2)} / ${load.worker.toFixed(2)}`,
    `${milliseconds(load.loopP99Ms)} ms`,
    `${broken.length === 0 ? 'pass' : 'FAIL'}${tried}`,
    outcome,
  ];
}

/** `2.1 × (4 → 8 ms)` */
function change(alone: VictimFigures, beside: VictimFigures, of: (figures: VictimFigures) => number | null): string {
  const [before, after] = [of(alone), of(beside)];
  if (before === null || after === null) return 'none';
  return `${(after / before).toFixed(1)} × (${milliseconds(before)} → ${milliseconds(after)} ms)`;
}

const milliseconds = (value: number): string => (value < 100 ? value.toFixed(1) : value.toFixed(0));

/** The same figures for scripts: one line of JSON for each attack. */
export function toJson({ figures, ...report }: AttackReport): string {
  const ratio = (of: (figures: VictimFigures) => number | null): number | null => {
    const [alone, beside] = figures === undefined ? [null, null] : [of(figures.alone), of(figures.beside)];
    return alone === null || beside === null ? null : beside / alone;
  };
  return JSON.stringify({
    ...report,
    live_p50_ratio: ratio((of) => of.live.p50Ms),
    live_p99_ratio: ratio((of) => of.live.p99Ms),
    batch_p50_ratio: ratio((of) => of.batches.p50Ms),
    ...figures,
  });
}
