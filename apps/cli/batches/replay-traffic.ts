import { setTimeout as wait } from 'node:timers/promises';
import { Option, type Command } from 'commander';
import { CliError, exitCodes } from '../server/cli-error.ts';
import { clientCommand, toCount, toMaximum, toPairs, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import type { Client } from '../server/http-client.ts';
import { toMoment } from '../logs/time-range.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { note, printObject, printRows, showsTable } from '../terminal/output.ts';
import { formatCount, formatDollars } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { showDryRun, wouldRun, type DryRun } from './dry-run-batch.ts';
import { toBounds } from './run-batch.ts';
import { watchBatch } from './watch-batch.ts';

type ReplayOptions = ClientOptions & {
  from?: string;
  to?: string;
  where?: Record<string, string>;
  batch?: string;
  endpoint?: string;
  limit?: number;
  model?: string;
  config?: string;
  prompt?: string;
  target?: string;
  maxCost?: string;
  judge?: string;
  judgeLimit?: number;
  dryRun?: boolean;
  detach?: boolean;
};

type Selection = { calls: number; left_out: Record<string, number>; has_more: boolean };
type Side = {
  answered: number;
  failed: number;
  latency_ms: { p50: number | null; p95: number | null; p99: number | null };
  input_tokens: number;
  output_tokens: number;
  cost_usd: string | null;
  valid: number;
  invalid: number;
};
type Difference = {
  line: number;
  custom_id: string;
  kind: string;
  similarity: number | null;
  original_line: number | null;
  verdict: string | null;
};
type Replay = {
  id: string;
  status: string;
  error: string | null;
  batch_id: string;
  source_batch_id: string | null;
  judge: { batch_id: string } | null;
  report: { original: Side; replay: Side; equal: number; different: number; not_compared: number } | null;
  verdicts: { judged: number; wins: number; ties: number; losses: number; unclear: number } | null;
  differences?: Difference[];
};

/** Adds `sluice replay-traffic`. */
export function addReplayCommand(program: Command): void {
  clientCommand(program, 'replay-traffic', 'call recorded calls again with another model, and compare the answers')
    .option('--from <time>', 'calls from this time: 24h or 7d ago, or a time such as 2026-11-24', toMoment)
    .option('--to <time>', 'calls until this time, in the same format', toMoment)
    .option('--where <filter=value>', 'calls that match this filter of GET /v1/logs; can be repeated', toPairs)
    .option('--batch <id>', 'the lines of this batch instead of recorded calls')
    .option('--endpoint <path>', 'calls of this endpoint (default: /v1/chat/completions)')
    .option('--limit <count>', 'at most this many calls', toCount({ min: 1, max: 50_000 }))
    .option('--model <model>', 'replaces the model of each request')
    .option('--config <slug>', 'calls through this config')
    .option('--prompt <prompt>', 'replaces the prompt of each line of a batch, such as support@7')
    .option('--target <slug>', 'calls with this virtual key')
    .option('--max-cost <dollars>', 'stop before the calls cost more', toMaximum)
    .option('--judge <model>', 'asks this model which of two different answers is better')
    .option('--judge-limit <count>', 'judges at most this many answers', toCount({ min: 1, max: 1_000 }))
    .addOption(new Option('--dry-run', 'only show which calls would be made, and their cost').conflicts('detach'))
    .option('--detach', 'print the replay without waiting for its end')
    .addHelpText('after', '\nOnly calls with recorded bodies can be replayed.\nCtrl-C does not cancel the calls.')
    .action(replayTraffic);
}

/** Selecting calls takes up to two minutes. */
const selectTimeoutMs = 180_000;

async function replayTraffic(options: ReplayOptions): Promise<void> {
  const client = await connect(options);
  const json = toBody(options);
  const request = { json, timeoutMs: selectTimeoutMs };
  const { selection, batch } = await client.json<{ selection: Selection; batch: DryRun | null }>(
    'POST',
    '/v1/replays',
    {
      ...request,
      json: { ...json, dry_run: true },
    },
  );
  noteSelection(selection);
  if (options.dryRun === true && !showsTable(options)) printObject({ selection, batch }, options);
  else if (batch !== null && showsTable(options)) showDryRun(batch, options);
  if (batch === null || !wouldRun(batch)) {
    process.exitCode = exitCodes.failed;
    if (options.dryRun !== true) note('Nothing was called. To see why, add --dry-run.');
  }
  if (options.dryRun === true || process.exitCode === exitCodes.failed) return;
  const created = await client.json<Replay>('POST', '/v1/replays', request);
  note(`${created.id}: calls in ${created.batch_id}`);
  if (options.detach === true) {
    printObject(created, options);
    return;
  }
  const replay = await interruptible(
    (signal) => watchReplay(client, created, signal),
    () => `The replay continues. To see its report: sluice traffic-replays get ${created.id}`,
  );
  showReplay(replay, options);
  if (replay.status === 'failed') throw new CliError(`The replay failed. ${replay.error ?? ''}`.trim());
}

function toBody(options: ReplayOptions): Record<string, unknown> {
  const { from, to, where, batch, endpoint, limit, model, config, prompt, target, judge, judgeLimit } = options;
  const filters = { time_of_generation_min: from, time_of_generation_max: to, ...where };
  if (batch !== undefined && Object.values(filters).some((value) => value !== undefined))
    throw new CliError('--batch replays all lines of a batch. Leave out --from, --to and --where.', {
      exitCode: exitCodes.usage,
    });
  return {
    ...(batch === undefined ? { filters } : { batch_id: batch }),
    endpoint,
    limit,
    model,
    prompt,
    gateway_options: {
      ...(target === undefined ? {} : { virtual_key: target.replace(/^@/, '') }),
      ...(config === undefined ? {} : { config }),
      ...toBounds(options),
    },
    ...(judge === undefined ? {} : { judge: { model: judge, limit: judgeLimit } }),
  };
}

function noteSelection({ calls, left_out: leftOut, has_more: hasMore }: Selection): void {
  const reasons = Object.entries(leftOut).map(([reason, count]) => `${reason.replaceAll('_', ' ')} ${count}`);
  const left = reasons.length === 0 ? '' : `; left out: ${reasons.join(', ')}`;
  note(`${formatCount(calls, 'call')} to replay${hasMore ? ', more match' : ''}${left}`);
}

const pollMs = 1_000;

async function watchReplay(client: Client, created: Replay, signal: AbortSignal): Promise<Replay> {
  await watchBatch(client, created.batch_id, signal);
  for (let isJudged = false; ;) {
    const replay = await client.json<Replay>('GET', `/v1/replays/${created.id}`, { signal });
    if (replay.status === 'completed' || replay.status === 'failed') return replay;
    if (replay.status === 'judging' && replay.judge !== null && !isJudged) {
      note(`The judge answers in ${replay.judge.batch_id}.`);
      await watchBatch(client, replay.judge.batch_id, signal);
      isJudged = true;
    }
    await wait(pollMs, undefined, { signal });
  }
}

const ms = (value: number | null): string => (value === null ? '-' : `${Math.round(value)} ms`);

type Row = { name: string; original: string | number; replay: string | number };
const reportColumns: readonly Column<Row>[] = [
  ['', ({ name }) => name],
  ['original', ({ original }) => original, { right: true }],
  ['replay', ({ replay }) => replay, { right: true }],
];
const measures: readonly (readonly [name: string, read: (side: Side) => string | number])[] = [
  ['answered', ({ answered }) => answered],
  ['failed', ({ failed }) => failed],
  ['latency p50', ({ latency_ms: { p50 } }) => ms(p50)],
  ['latency p95', ({ latency_ms: { p95 } }) => ms(p95)],
  ['input tokens', ({ input_tokens: tokens }) => tokens],
  ['output tokens', ({ output_tokens: tokens }) => tokens],
  ['cost', ({ cost_usd: usd }) => formatDollars(usd)],
  ['schema valid', ({ valid }) => valid],
  ['schema invalid', ({ invalid }) => invalid],
];

const differenceColumns: readonly Column<Difference>[] = [
  ['line', ({ line }) => line],
  ['difference', ({ kind }) => kind.replaceAll('_', ' ')],
  ['similarity', ({ similarity }) => similarity],
  ['verdict', ({ verdict }) => verdict],
  ['original', ({ custom_id: id }) => id],
];
const differencesShown = 10;

function showReplay(replay: Replay, options: ClientOptions): void {
  if (!showsTable(options) || replay.report === null) {
    printObject(replay, options);
    return;
  }
  const { report, verdicts, differences = [] } = replay;
  const rows = measures.map(([name, read]) => ({ name, original: read(report.original), replay: read(report.replay) }));
  printRows(rows, reportColumns, options);
  note(`${report.equal} equal, ${report.different} different, ${report.not_compared} not compared`);
  if (verdicts !== null) {
    const { wins, ties, losses, unclear } = verdicts;
    note(`The judge: ${wins} better, ${ties} ties, ${losses} worse, ${unclear} unclear`);
  }
  const shown = differences.slice(0, differencesShown);
  if (shown.length > 0) printRows(shown, differenceColumns, options);
  if (shown.length > 0) note(`To see an answer: sluice batch line ${replay.batch_id} ${shown[0]?.line ?? 1}`);
  if (shown.length > 0 && replay.source_batch_id === null)
    note(`To see an original: sluice logs get ${shown[0]?.custom_id ?? ''}`);
}
