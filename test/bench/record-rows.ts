import type { RebuildFigures } from './rebuild-bench.ts';
import { fixed, memoryRow, whole, type Row } from './report.ts';
import type { SealFigures } from './seal-bench.ts';
import { median, percentile } from './statistics.ts';

/** The rows of the seal of the event log, and of exports. */
export function sealRows({ wantedPerSecond, appended, lagMs, sealed, verified }: SealFigures): Row[] {
  const section = 'the record: seal and export';
  const ratios = appended.sealed.map((perSecond, round) => (perSecond / (appended.alone[round] ?? 0)) * 100);
  const ofAlone = median(ratios);
  const [p50, p99] = [percentile(lagMs, 0.5) / 1_000, percentile(lagMs, 0.99) / 1_000];
  return [
    {
      section,
      figure: `appended at a paced ${whole(wantedPerSecond)} events/s: alone, with the sealer`,
      value: `${whole(median(appended.alone))}, ${whole(median(appended.sealed))} events/s`,
    },
    {
      section,
      figure: 'with the sealer against alone (lowest, highest round)',
      value: `${fixed(ofAlone, 1)} % (${fixed(Math.min(...ratios), 1)}, ${fixed(Math.max(...ratios), 1)})`,
      mark: '≥ 95 %',
      reached: ofAlone >= 95,
    },
    {
      section,
      figure: 'append → checkpoint: p50, p99',
      value: `${fixed(p50, 2)} s, ${fixed(p99, 2)} s`,
      mark: 'p99 ≤ 5 s',
      reached: p99 <= 5,
    },
    {
      section,
      figure: `sealed on one thread, ${whole(sealed.events)} events (its processor time an event)`,
      value: `${whole(sealed.perSecond)} events/s (${fixed(sealed.cpuMicroseconds, 1)} µs)`,
      mark: '≥ 100,000 events/s',
      reached: sealed.perSecond >= 100_000,
    },
    {
      section,
      figure: `audit-verify over an export of ${whole(verified.events)} events`,
      value: `${whole(verified.perSecond)} events/s`,
      mark: '≥ 60,000 events/s',
      reached: verified.perSecond >= 60_000,
    },
  ];
}

/** The rows of a rebuild, of states of records, and of sealed calls. */
export function rebuildRows(figures: RebuildFigures): Row[] {
  const { rebuiltPerSecond, checkedPerSecond, heldMs, liveP99Ms, stateP99Ms, callMicroseconds } = figures;
  const section = `the record: rebuild of ${whole(figures.events)} events, all rows wrong`;
  const ofCheck = rebuiltPerSecond / checkedPerSecond;
  const ofAlone = liveP99Ms.during / liveP99Ms.alone;
  const sealShare = (callMicroseconds.seal / callMicroseconds.live) * 100;
  return [
    {
      section,
      figure: 'rebuild against a check alone: events/s of each',
      value: `${fixed(ofCheck, 2)} ×: ${whole(rebuiltPerSecond)}, ${whole(checkedPerSecond)}`,
      mark: '≥ 3 ×',
      reached: ofCheck >= 3,
    },
    memoryRow(section, 'peak memory of the rebuild', figures.peakBytes),
    {
      section,
      figure: 'writers held: waits beyond their usual p99 in total (longest wait)',
      value: `${fixed(heldMs.total / 1_000, 2)} s (${fixed(heldMs.longest / 1_000, 2)} s)`,
      mark: '≤ 2 s',
      reached: heldMs.total <= 2_000,
    },
    {
      section,
      figure: 'live p99, one call at a time: during the rebuild, alone',
      value: `${fixed(ofAlone, 2)} ×: ${fixed(liveP99Ms.during, 1)} ms, ${fixed(liveP99Ms.alone, 1)} ms`,
      mark: '≤ 1.2 ×',
      reached: ofAlone <= 1.2,
    },
    {
      section,
      figure: 'state of a record of 1,000 events at a moment, p99',
      value: `${fixed(stateP99Ms, 1)} ms`,
      mark: '≤ 50 ms',
      reached: stateP99Ms <= 50,
    },
    {
      section,
      figure: 'processor time of sealing a call, against that of the call in API and Postgres',
      value: `${fixed(sealShare, 1)} %: ${fixed(callMicroseconds.seal, 1)} µs of ${fixed(callMicroseconds.live, 1)} µs`,
      mark: '≤ 3 %',
      reached: sealShare <= 3,
    },
  ];
}
