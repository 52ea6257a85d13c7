import { readReset } from '#libs/calls/upstream/answers/rate-reset.ts';
import type { Ended } from '#libs/calls/retry-waits.ts';

/** The state of a provider's rate limit, as it reports it with an answer. */
type Reported = { max: number; remaining: number; resetMs: number };

/** The level of a bucket after a call has taken its part, and the sum of all corrections until then. */
type Mark = { level: number; corrected: number };

/** The limits that providers report. Anthropic limits the tokens of inputs and of outputs separately. */
const kinds = ['requests', 'tokens', 'input-tokens', 'output-tokens'] as const;
type Kind = (typeof kinds)[number];

export type PaceMark = Record<Kind, Mark>;

const minuteMs = 60_000;
/** This part of a limit is left to live calls, and to processes whose answers are late. */
const reserved = 1 / 50;
/** How much one call changes the average of tokens. */
const averageGain = 1 / 16;

/**
 * This process's part of a provider's rate limit. It is filled at the rate that the provider reports, and corrected by
 * what each answer says was left when its call began.
 */
class Bucket {
  #level = 0;
  #corrected = 0;
  #filledMs = 0;
  #max = 0;
  #perMs: number | null = null;

  spend(cost: number): void {
    this.#level -= cost;
  }

  take(cost: number): Mark {
    this.spend(cost);
    return { level: this.#level, corrected: this.#corrected };
  }

  learn({ max, remaining, resetMs }: Reported, mark: Mark, part: number, nowMs: number): void {
    this.#fill(nowMs);
    // A reset is the time until the limit is full again, so the reported rate can be that of a day. A window that ends
    // soon does not mean a higher rate than that of a minute.
    const used = max - remaining;
    const rate = used > 0 && resetMs > 0 ? Math.min(used / resetMs, max / minuteMs) : max / minuteMs;
    this.#perMs = rate * part;
    this.#max = max * part;
    this.#filledMs = nowMs;
    const error = remaining * part - mark.level - (this.#corrected - mark.corrected);
    this.#level += error;
    this.#corrected += error;
  }

  has(cost: number, nowMs: number): boolean {
    if (this.#perMs === null) return true;
    this.#fill(nowMs);
    // A small part of a limit is less than one call, which can then begin when it is full.
    return this.#level >= Math.min(cost + this.#max * reserved, this.#max);
  }

  #fill(nowMs: number): void {
    if (this.#perMs === null) return;
    this.#level = Math.min(this.#max, this.#level + (nowMs - this.#filledMs) * this.#perMs);
    this.#filledMs = nowMs;
  }
}

/**
 * Paces the calls of one credential and model by the rate limits that the provider reports in `x-ratelimit-*`, so that
 * they are spread over time instead of being rejected in bursts. Without such headers, it limits nothing.
 */
export class RatePace {
  readonly #buckets: Readonly<Record<Kind, Bucket>> = {
    requests: new Bucket(),
    tokens: new Bucket(),
    'input-tokens': new Bucket(),
    'output-tokens': new Bucket(),
  };
  /** What a call uses of each limit, on average. */
  readonly #average: Record<Kind, number> = { requests: 1, tokens: 0, 'input-tokens': 0, 'output-tokens': 0 };

  mayBegin(nowMs: number): boolean {
    return kinds.every((kind) => this.#buckets[kind].has(this.#average[kind], nowMs));
  }

  /** A live call has begun. It learns nothing. */
  beginLive(): void {
    for (const kind of kinds) this.#buckets[kind].spend(this.#average[kind]);
  }

  begin(): PaceMark {
    const take = (kind: Kind): Mark => this.#buckets[kind].take(this.#average[kind]);
    return {
      requests: take('requests'),
      tokens: take('tokens'),
      'input-tokens': take('input-tokens'),
      'output-tokens': take('output-tokens'),
    };
  }

  /** `part`: the part of the limits that belongs to this process. */
  learn(ended: Ended, mark: PaceMark, part: number, nowMs: number): void {
    if (ended === null || 'error' in ended) return;
    const { headers, usage } = ended;
    if (usage) {
      const { inputTokens, outputTokens } = usage;
      this.#learnAverage('tokens', inputTokens + outputTokens);
      this.#learnAverage('input-tokens', inputTokens);
      this.#learnAverage('output-tokens', outputTokens);
    }
    for (const kind of kinds) {
      const reported = readRate(headers, kind);
      if (reported !== null) this.#buckets[kind].learn(reported, mark[kind], part, nowMs);
    }
  }

  #learnAverage(kind: Kind, used: number): void {
    const average = this.#average[kind];
    this.#average[kind] += (used - average) * (average === 0 ? 1 : averageGain);
  }
}

const makeHeaderNames = (kind: Kind) => ({
  limit: `x-ratelimit-limit-${kind}`,
  remaining: `x-ratelimit-remaining-${kind}`,
  reset: `x-ratelimit-reset-${kind}`,
});

/** Built once. Building the names for each answer took half a kilobyte of garbage. */
const headerNames: Readonly<Record<Kind, ReturnType<typeof makeHeaderNames>>> = {
  requests: makeHeaderNames('requests'),
  tokens: makeHeaderNames('tokens'),
  'input-tokens': makeHeaderNames('input-tokens'),
  'output-tokens': makeHeaderNames('output-tokens'),
};

function readRate(headers: Readonly<Record<string, string>>, kind: Kind): Reported | null {
  const { limit, remaining: left, reset } = headerNames[kind];
  const max = readCount(headers[limit]);
  if (max === null || max === 0) return null;
  const remaining = readCount(headers[left]);
  const resetMs = readReset(headers[reset]);
  if (remaining === null || resetMs === null) return null;
  return { max, remaining: Math.min(remaining, max), resetMs };
}

const readCount = (text: string | undefined): number | null =>
  text !== undefined && /^\d{1,12}$/.test(text) ? Number(text) : null;
