import type { ReplayDifference, ReplayReport, ReplaySide } from '#libs/contracts/batches/traffic-replays.ts';
import { addDecimals } from '#libs/prices/add-decimals.ts';
import { toDollars } from '#libs/prices/to-dollars.ts';
import type { LogListRow } from '#libs/request-log/read/read-log.ts';

/** What the request log knows of a call. */
export type CallFacts = Pick<LogListRow, 'upstream_ms' | 'input_tokens' | 'output_tokens' | 'cost'>;

/** One side of a line: the original, or its replay. */
export type Side = {
  succeeded: boolean;
  /** The answer; undefined if it is not known. */
  body: unknown;
  facts: CallFacts | null;
  /** Whether the answer matches the JSON Schema of its request; null without one. */
  isValid: boolean | null;
};

/** A line of a replay that was compared with its original. `kind`: null if the two could not be compared. */
export type ComparedLine = Omit<ReplayDifference, 'kind' | 'verdict'> & {
  kind: ReplayDifference['kind'] | 'equal' | null;
  original: Side | null;
  replay: Side;
};

/** The maximum of differences that a report has. */
const differencesMax = 100;

/** Higher is worse. */
const severity: Record<ReplayDifference['kind'], number> = {
  replay_failed: 3,
  schema_broken: 2,
  different: 1,
  original_failed: 0,
};

/** Decides in which way a line differs from its original. null: they cannot be compared. */
export function classifyLine(
  original: Omit<Side, 'facts'> | null,
  replay: Omit<Side, 'facts'>,
  isEqual: boolean | null,
): ComparedLine['kind'] {
  if (original === null) return null;
  if (!replay.succeeded) return original.succeeded ? 'replay_failed' : null;
  if (!original.succeeded) return 'original_failed';
  if (replay.isValid === false && original.isValid !== false) return 'schema_broken';
  return isEqual === null ? null : isEqual ? 'equal' : 'different';
}

/** Adds up compared lines in memory that does not depend on their number, except for one number per latency. */
export class ReplayReporter {
  readonly #original = new SideSum();
  readonly #replay = new SideSum();
  #counts = { equal: 0, different: 0, not_compared: 0 };
  #worst: ReplayDifference[] = [];

  add({ original, replay, kind, ...place }: ComparedLine): void {
    if (original !== null) this.#original.add(original);
    this.#replay.add(replay);
    if (kind === 'equal') this.#counts.equal += 1;
    else if (kind === 'different' || kind === 'schema_broken') this.#counts.different += 1;
    else this.#counts.not_compared += 1;
    if (kind === null || kind === 'equal') return;
    this.#worst.push({ ...place, kind, verdict: null });
    if (this.#worst.length > 20 * differencesMax) this.#worst = this.differences();
  }

  report(): ReplayReport {
    return { original: this.#original.sum(), replay: this.#replay.sum(), ...this.#counts };
  }

  /** The worst differences, worst first. */
  differences(): ReplayDifference[] {
    const worstFirst = this.#worst.toSorted(
      (a, b) => severity[b.kind] - severity[a.kind] || (a.similarity ?? 0) - (b.similarity ?? 0) || a.line - b.line,
    );
    return worstFirst.slice(0, differencesMax);
  }
}

class SideSum {
  #counts = {
    answered: 0,
    failed: 0,
    with_record: 0,
    input_tokens: 0,
    output_tokens: 0,
    unpriced: 0,
    valid: 0,
    invalid: 0,
  };
  #cents: string | null = null;
  readonly #latencies: number[] = [];

  add({ succeeded, facts, isValid }: Side): void {
    const counts = this.#counts;
    counts[succeeded ? 'answered' : 'failed'] += 1;
    if (isValid !== null) counts[isValid ? 'valid' : 'invalid'] += 1;
    if (facts === null) return;
    counts.with_record += 1;
    counts.input_tokens += facts.input_tokens ?? 0;
    counts.output_tokens += facts.output_tokens ?? 0;
    if (facts.cost === null) counts.unpriced += 1;
    else this.#cents = addDecimals(this.#cents, facts.cost);
    // The time of a failure says nothing about a model.
    if (succeeded) this.#latencies.push(facts.upstream_ms);
  }

  sum(): ReplaySide {
    const sorted = this.#latencies.toSorted((a, b) => a - b);
    const at = (share: number): number | null => sorted[Math.ceil(share * sorted.length) - 1] ?? null;
    return {
      ...this.#counts,
      latency_ms: { p50: at(0.5), p95: at(0.95), p99: at(0.99) },
      cost_usd: this.#cents === null ? null : toDollars(this.#cents),
    };
  }
}
