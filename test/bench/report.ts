import { kinds, summarise, type AnalyticsFigures } from './analytics-bench.ts';
import type { BatchFigures, SmallBatchFigures } from './batch-bench.ts';
import type { BodyFigures } from './body-bench.ts';
import type { ExportFigures } from './export-bench.ts';
import type { FeatureFigures } from './feature-bench.ts';
import type { TelemetryFigures } from './telemetry-bench.ts';
import type { LiveFigures } from './live-bench.ts';
import type { LogFigures } from './log-bench.ts';
import type { TargetFigures } from './measure-targets.ts';
import { median } from './statistics.ts';

/** One line of the table. `mark` is the target; absent for figures without one. */
export type Row = { section: string; figure: string; value: string; mark?: string; reached?: boolean };

const mebibyte = 1_048_576;
const memoryMarkMb = 300;

export const whole = (value: number): string => Math.round(value).toLocaleString('en-US');
export const fixed = (value: number, digits: number): string => value.toFixed(digits);

/** The rows of one batch. */
export function batchRows(figures: BatchFigures): Row[] {
  const { lines, totalSeconds, fileBytes, peakBytes, cpuSeconds } = figures;
  const megabytes = fileBytes / 1_000_000;
  const section = `batch of ${whole(lines)} lines, ${fixed(megabytes, 0)} MB`;
  const perSecond = lines / totalSeconds;
  const perLine = (seconds: number): string => `${whole((seconds / lines) * 1_000_000)} µs`;
  return [
    {
      section,
      figure: 'upload → completed',
      value: `${whole(perSecond)} lines/s (${fixed(megabytes / totalSeconds, 1)} MB/s)`,
      mark: '≥ 1,500 lines/s',
      reached: perSecond >= 1_500,
    },
    {
      section,
      figure: 'of it upload, validation',
      value: `${fixed(figures.uploadSeconds, 2)} s, ${fixed(figures.validationSeconds, 2)} s of ${fixed(totalSeconds, 1)} s`,
    },
    ...(['worker', 'api', 'simulator'] as const).map((name) =>
      memoryRow(section, `peak memory, ${name}${figures.peakIsOwn ? '' : ' (since its start)'}`, peakBytes[name]),
    ),
    {
      section,
      figure: 'processor time a line: worker, postgres, simulator',
      value: `${perLine(cpuSeconds.worker)}, ${perLine(cpuSeconds.postgres)}, ${perLine(cpuSeconds.simulator)}`,
    },
    {
      section,
      figure: 'API meanwhile: event loop p99 (idle: 10 ms), GET /health/live p99',
      value: `${fixed(figures.apiLoopP99Ms, 1)} ms, ${fixed(figures.probeP99Ms, 1)} ms`,
    },
  ];
}

/** The rows of many batches of a few lines. */
export function smallBatchRows({ batches, lines, perSecond, cpuMs }: SmallBatchFigures): Row[] {
  const section = `${whole(batches)} batches of ${whole(lines)} lines`;
  const times = [cpuMs.api, cpuMs.worker, cpuMs.postgres].map((ms) => `${fixed(ms, 1)} ms`);
  return [
    { section, figure: 'upload → completed', value: `${fixed(perSecond, 1)} batches/s` },
    { section, figure: 'processor time a batch: api, worker, postgres', value: times.join(', ') },
  ];
}

const analyticsMarkMs = 200;

/** The rows of analytics queries: of all, of each kind, and of each query. */
export function analyticsRows({ calls, rollupRows, queries }: AnalyticsFigures): Row[] {
  const section = `analytics over 30 days of ${whole(calls)} calls`;
  const all = summarise(queries);
  const times = ({ p50Ms, p95Ms, maxMs }: typeof all): string =>
    `${whole(p95Ms)} ms (${whole(p50Ms)} ms, ${whole(maxMs)} ms)`;
  return [
    {
      section,
      figure: 'p95 of all queries (p50, slowest one)',
      value: times(all),
      mark: `< ${analyticsMarkMs} ms`,
      reached: all.p95Ms < analyticsMarkMs,
    },
    ...kinds.map((kind) => ({
      section,
      figure: `p95 of ${kind} (p50, slowest one)`,
      value: times(summarise(queries.filter((query) => query.kind === kind))),
    })),
    ...queries.map(({ name, wallMs, explained: { executionMs, rows, pages } }) => ({
      section,
      figure: `p50 of ${name}; in Postgres, rows, pages`,
      value: `${whole(median(wallMs))} ms; ${fixed(executionMs, 1)} ms, ${whole(rows)}, ${whole(pages)}`,
    })),
    { section, figure: 'rows of its rollups', value: whole(rollupRows) },
  ];
}

export function memoryRow(section: string, figure: string, bytes: number): Row {
  return {
    section,
    figure,
    value: `${whole(bytes / mebibyte)} MB`,
    mark: `≤ ${memoryMarkMb} MB`,
    reached: bytes <= memoryMarkMb * mebibyte,
  };
}

/** The rows of live calls. */
export function liveRows({ targets, modestPerSecond, concurrency }: LiveFigures): Row[] {
  const { direct, dispatch, bare, sluice, portkey } = targets;
  const section = `live, ${concurrency} at a time`;
  const ofBare = throughputRatio(sluice, bare) * 100;
  const ofDispatch = throughputRatio(sluice, dispatch) * 100;
  const ofPortkey = throughputRatio(sluice, portkey);
  const latency = (figure: string, of: (target: typeof direct) => number): Row => ({
    section,
    figure,
    value: (['bare', 'sluice', 'portkey'] as const)
      .map((name) => `${name} ${fixed(of(targets[name]) - of(direct), 2)}`)
      .join(', '),
  });
  return [
    {
      section,
      figure: 'requests/s: direct, bare proxy, sluice, portkey',
      value: [direct, bare, sluice, portkey].map(({ perSecond }) => whole(perSecond)).join(', '),
    },
    {
      section,
      figure: 'sluice against a proxy of undici.dispatch and no streams, the least there can be',
      value: `${fixed(ofDispatch, 0)} % of ${whole(dispatch.perSecond)}`,
    },
    {
      section,
      figure: 'sluice against the bare proxy: node:http, undici.request, bodies piped',
      value: `${fixed(ofBare, 0)} %`,
      mark: '≥ 50 %',
      reached: ofBare >= 50,
    },
    {
      section,
      figure: 'sluice against portkey',
      value: `${fixed(ofPortkey, 1)} ×`,
      mark: '≥ 4 ×',
      reached: ofPortkey >= 4,
    },
    {
      section,
      figure: 'processor time a request: dispatch, bare, sluice, portkey',
      value: [dispatch, bare, sluice, portkey].map(({ cpuMicroseconds }) => `${whole(cpuMicroseconds)} µs`).join(', '),
    },
    latency(`added p50 at ${modestPerSecond} requests/s, ms`, (target) => target.modestP50Ms),
    latency(`added p99 at ${modestPerSecond} requests/s, ms`, (target) => target.modestP99Ms),
    latency('added p50 when saturated, ms', (target) => target.p50Ms),
    latency('added p99 when saturated, ms', (target) => target.p99Ms),
    memoryRow(section, 'peak memory, api', sluice.peakBytes),
    { section, figure: 'peak memory, portkey', value: `${whole(portkey.peakBytes / mebibyte)} MB` },
  ];
}

/**
 * The throughput of one as a multiple of the other's: the median of the rounds' ratios, because a machine changes its
 * speed between rounds.
 */
function throughputRatio(one: TargetFigures, other: TargetFigures): number {
  const ofRounds = one.byRound.perSecond.map((perSecond, round) => perSecond / (other.byRound.perSecond[round] ?? 0));
  return median(ofRounds);
}

/** The rows of streams, large prompts and large answers. */
export function bodyRows({ stream, prompt, vectors }: BodyFigures): Row[] {
  const section = 'streams and large bodies';
  const perEvent = ({ cpuMicroseconds }: TargetFigures): string => fixed(cpuMicroseconds / stream.events, 1);
  const ofBare = throughputRatio(stream.sluice, stream.bare) * 100;
  const ofEvents = cpuRatio(stream.bare, stream.sluice) * 100;
  const large = (what: string, { bare, sluice }: Pick<typeof prompt, 'bare' | 'sluice'>, markMax: number): Row => ({
    section,
    figure: `processor time of ${what}: bare, sluice`,
    value: `${whole(bare.cpuMicroseconds)}, ${whole(sluice.cpuMicroseconds)} µs: ${fixed(cpuRatio(sluice, bare), 2)} ×`,
    mark: `≤ ${markMax} ×`,
    reached: cpuRatio(sluice, bare) <= markMax,
  });
  return [
    {
      section,
      figure: `streams of ${stream.events} events a second against the bare proxy`,
      value: `${whole(stream.sluice.perSecond)} of ${whole(stream.bare.perSecond)}, ${fixed(ofBare, 0)} %`,
      mark: '≥ 90 %',
      reached: ofBare >= 90,
    },
    {
      section,
      figure: 'processor time of an event: bare, sluice',
      value: `${perEvent(stream.bare)}, ${perEvent(stream.sluice)} µs: bare is ${fixed(ofEvents, 0)} % of sluice`,
      mark: '≥ 90 %',
      reached: ofEvents >= 90,
    },
    {
      section,
      figure: 'added time to the first token, p50 at 50 streams/s',
      value: `${fixed(stream.sluice.contentP50Ms - stream.bare.contentP50Ms, 2)} ms beyond the bare proxy`,
      mark: '≤ 1 ms',
      reached: stream.sluice.contentP50Ms - stream.bare.contentP50Ms <= 1,
    },
    large(`a prompt of ${whole(prompt.requestBytes / 1_000)} KB`, prompt, 2),
    large(`vectors of ${fixed(vectors.answerBytes / 1_000_000, 1)} MB`, vectors, 2),
  ];
}

/** The processor time of one as a multiple of the other's: the median of the rounds' ratios. */
function cpuRatio(one: TargetFigures, other: TargetFigures): number {
  return median(one.byRound.cpuMicroseconds.map((us, round) => us / (other.byRound.cpuMicroseconds[round] ?? 0)));
}

/** The rows of what OpenTelemetry costs. */
export function telemetryRows({ off, ...others }: TelemetryFigures): Row[] {
  const names = {
    metrics: 'metrics alone',
    hundredth: 'metrics and spans of 1 % of the calls',
    tenth: 'metrics and spans of 10 %',
    all: 'metrics and spans of all calls',
  };
  return (Object.keys(names) as (keyof typeof names)[]).map((name) => {
    const target = others[name];
    return {
      section: `OpenTelemetry, beside ${whole(off.cpuMicroseconds)} µs a call without it`,
      figure: `${names[name]}: more processor time, requests/s, added p50`,
      value:
        `${fixed((target.cpuMicroseconds / off.cpuMicroseconds - 1) * 100, 1)} %, ` +
        `${fixed(throughputRatio(target, off) * 100, 0)} %, ` +
        `${fixed(target.modestP50Ms - off.modestP50Ms, 2)} ms`,
    };
  });
}

/** The rows of Sluice's features besides passing calls through. */
export function featureRows(figures: FeatureFigures): Row[] {
  const section = 'live, beside pass-through';
  const { passThrough, fallback, transform, cacheHit, limited, signedIn, guarded, pattern, together } = figures;
  const names = 'fallback of two targets, Anthropic, cache hit';
  const compared = (of: (figures: typeof fallback) => string): string =>
    [fallback, transform, cacheHit].map(of).join(', ');
  const ofWorkspace: [string, TargetFigures][] = [
    ['three policies', limited],
    ['a token (JWT) instead of a key', signedIn],
    ['a stored guardrail of words', guarded],
    ['a stored guardrail of a pattern', pattern],
    ['policies, token and words together', together],
  ];
  return [
    {
      section,
      figure: `requests/s against pass-through: ${names}`,
      value: compared((target) => `${fixed(throughputRatio(target, passThrough) * 100, 0)} %`),
    },
    {
      section,
      figure: `processor time beyond pass-through's ${whole(passThrough.cpuMicroseconds)} µs: ${names}`,
      value: compared(({ cpuMicroseconds }) => `${whole(cpuMicroseconds - passThrough.cpuMicroseconds)} µs`),
    },
    {
      section,
      figure: 'added p50 at the modest rate, ms (the cache saves the provider)',
      value: compared(({ modestP50Ms }) => fixed(modestP50Ms - passThrough.modestP50Ms, 2)),
    },
    {
      section,
      figure: 'added p99 at the modest rate, ms',
      value: compared(({ modestP99Ms }) => fixed(modestP99Ms - passThrough.modestP99Ms, 2)),
    },
    ...ofWorkspace.map(([name, target]) => ({
      section,
      figure: `${name}: requests/s against pass-through, more processor time, added p50 and p99`,
      value:
        `${fixed(throughputRatio(target, passThrough) * 100, 0)} %, ` +
        `${whole(target.cpuMicroseconds - passThrough.cpuMicroseconds)} µs, ` +
        `${fixed(target.modestP50Ms - passThrough.modestP50Ms, 2)} ms, ` +
        `${fixed(target.modestP99Ms - passThrough.modestP99Ms, 2)} ms`,
    })),
  ];
}

/** The rows of exports of the request log. */
export function exportRows({ rows, rowsPerSecond, bytes }: ExportFigures): Row[] {
  return (['ndjson', 'parquet'] as const).map((format) => ({
    section: `export of ${whole(rows)} records of the request log`,
    figure: format === 'ndjson' ? 'NDJSON' : 'Parquet',
    value: `${whole(rowsPerSecond[format])} rows/s (${whole(bytes[format] / 1_000_000)} MB)`,
  }));
}

/** The rows of the event log. */
export function logRows(figures: LogFigures): Row[] {
  const section = `event log, ${figures.writers} writers`;
  return [
    { section, figure: 'appended, 1 a transaction', value: `${whole(figures.appendedSinglyPerSecond)} events/s` },
    { section, figure: 'appended, 64 a transaction', value: `${whole(figures.appendedBy64PerSecond)} events/s` },
    {
      section,
      figure: `replayed and compared, ${whole(figures.replayedEvents)} events`,
      value: `${whole(figures.replayedPerSecond)} events/s`,
      mark: '≥ 50,000 events/s',
      reached: figures.replayedPerSecond >= 50_000,
    },
    memoryRow(section, 'peak memory, sluice check records', figures.replayPeakBytes),
  ];
}

/** All rows as one table. */
export function formatTable(rows: readonly Row[]): string {
  const header = ['', 'measured', 'mark', ''];
  const verdict = (row: Row): string => (row.reached === undefined ? '' : row.reached ? 'pass' : 'FAIL');
  const body = rows.map((row) => [`  ${row.figure}`, row.value, row.mark ?? '', verdict(row)]);
  const widths = header.map((name, column) =>
    Math.max(name.length, ...body.map((cells) => (cells[column] ?? '').length)),
  );
  const format = (cells: readonly string[]): string =>
    cells
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd();
  const lines = [format(header)];
  let section = '';
  for (const [index, row] of rows.entries()) {
    if (row.section !== section) lines.push('', row.section);
    section = row.section;
    lines.push(format(body[index] ?? []));
  }
  return lines.join('\n');
}
