import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { AdmissionRequest, Spent } from '#libs/calls/admission.ts';
import type { RateLimit } from '#libs/contracts/people/limits.ts';
import { wholeAmount } from '#libs/kernel/amount.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { rateRule } from '#libs/limits/limit-rule.ts';
import { Limits } from '#libs/limits/limits.ts';
import { createMemoryCounters } from '#test/memory-counters.ts';
import { createLimitAdmission } from './limit-admission.ts';
import type { UsedAmounts } from './used-amounts.ts';

const minuteMs = 60_000;
const usage = { inputTokens: 0, outputTokens: 100, cachedTokens: 0, reasoningTokens: 0 };
const spent: Spent = { usage, attempts: [], status: 200, model: 'm' };

/** Calls are estimated at 1,000 tokens, and use 100 of them. */
const amounts: UsedAmounts = {
  estimate: (measure) => wholeAmount(measure === 'requests' ? 1 : 1_000),
  used: (measure) => ({ amount: wholeAmount(measure === 'requests' ? 1 : 100), unconfirmed: 0n }),
  learn: (_request, ended) => ended,
};

/** Processes that share one rate limit of a workspace, in virtual time. */
class World {
  readonly #stopping = new AbortController();
  readonly #store = createMemoryCounters().store;
  readonly #rules;
  readonly #limits: Limits[] = [];
  /** When calls began, in milliseconds since the start. */
  readonly sent = { line: [] as number[], live: [] as number[] };
  liveRefused = 0;
  readonly #startMs = Date.now();
  #live: NodeJS.Timeout | undefined;

  constructor(limit: Pick<RateLimit, 'type' | 'value'>) {
    const record = { id: 'policy', noun: 'rate_limit_policy', workspaceId: 'ws', label: 'it', createdAtMs: 0 };
    const rule = rateRule({ ...record, scope: { of: 'workspace' } }, 'policy', {
      ...limit,
      unit: 'rpm',
      conditions: [],
      group_by: [],
    });
    this.#rules = { ofWorkspace: [rule], byModel: [], byKey: new Map(), byCredential: new Map() };
  }

  #process() {
    const limits = new Limits({
      store: this.#store,
      clock: { now: Date.now },
      logger: pino({ level: 'silent' }),
      onAlertDue: () => {},
      monotonicMs: () => Date.now() - this.#startMs,
    });
    limits.start();
    this.#limits.push(limits);
    const clock = { now: Date.now };
    return createLimitAdmission({ limits, rulesOf: () => this.#rules, amounts, clock, unpriced: 'admit' });
  }

  #request(isLine: boolean): AdmissionRequest {
    return {
      workspaceId: 'ws',
      keyId: null,
      target: { provider: 'openai', label: 'main' },
      model: 'm',
      operation: 'chat',
      work: 'call',
      metadata: null,
      config: null,
      prompt: null,
      waitsForBudget: isLine,
      waitForTurn: isLine ? (wait) => wait(this.#stopping.signal) : undefined,
      estimate: () => ({ inputTokens: 0, outputTokensMax: 1_000, choices: 1 }),
      otherModels: () => ({ names: [], chooses: null }),
    };
  }

  /** A worker with `lines` lines at a time, each of which takes two seconds. */
  worker(lines: number): void {
    const { admit } = this.#process();
    const work = async (): Promise<void> => {
      while (!this.#stopping.signal.aborted) {
        try {
          const reservation = await admit(this.#request(true));
          this.sent.line.push(Date.now() - this.#startMs);
          await new Promise((resolve) => setTimeout(resolve, 2_000));
          reservation?.settle(spent);
        } catch (error) {
          if (!(error instanceof GatewayError)) return;
          const { retryAfterMs = 1_000 } = error;
          await new Promise((resolve) => setTimeout(resolve, retryAfterMs));
        }
      }
    };
    for (let line = 0; line < lines; line += 1) void work();
  }

  /** An API with a live call every `everyMs`. */
  api(everyMs: number): void {
    const { admit } = this.#process();
    this.#live = setInterval(() => {
      void (async () => {
        try {
          const reservation = await admit(this.#request(false));
          this.sent.live.push(Date.now() - this.#startMs);
          setTimeout(() => reservation?.settle(spent), 500);
        } catch {
          this.liveRefused += 1;
        }
      })();
    }, everyMs);
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#live);
    const stopped = Promise.all(this.#limits.map((limits) => limits.stop()));
    await vi.advanceTimersByTimeAsync(10_000);
    await stopped;
  }
}

const most = (times: readonly number[], ms: number): number =>
  Math.max(...times.map((atMs) => times.filter((other) => other >= atMs && other < atMs + ms).length));

describe('a rate per minute, in virtual time', () => {
  beforeEach(() => void vi.useFakeTimers({ now: 10 * minuteMs }));
  afterEach(() => void vi.useRealTimers());

  test('is spread over the minute by three workers, and an API always has room', async () => {
    const world = new World({ type: 'requests', value: 600 });
    for (let worker = 0; worker < 3; worker += 1) world.worker(40);
    world.api(500);
    await vi.advanceTimersByTimeAsync(5 * minuteMs);
    await world.stop();
    const all = [...world.sent.line, ...world.sent.live].filter((atMs) => atMs < 5 * minuteMs);
    expect(world.liveRefused).toBe(0);
    expect(most(world.sent.line, 1_000)).toBeLessThanOrEqual(20);
    expect(most(all, minuteMs)).toBeLessThanOrEqual(600);
    expect(all.length).toBeGreaterThan(0.97 * 3_000);
  });

  test('is not used up at once by a batch that starts late in the minute', async () => {
    const world = new World({ type: 'requests', value: 600 });
    await vi.advanceTimersByTimeAsync(50_000);
    world.worker(1_000);
    await vi.advanceTimersByTimeAsync(10_000);
    await world.stop();
    expect(world.sent.line.filter((atMs) => atMs < 60_000).length).toBeLessThanOrEqual(120);
  });

  test('of tokens is spread by what calls use, not by what they could use', async () => {
    const world = new World({ type: 'tokens', value: 60_000 });
    for (let worker = 0; worker < 2; worker += 1) world.worker(40);
    await vi.advanceTimersByTimeAsync(3 * minuteMs);
    await world.stop();
    const after = world.sent.line.filter((atMs) => atMs >= minuteMs && atMs < 3 * minuteMs);
    // At the end of a minute, the estimates of running calls are reserved.
    expect(after.length).toBeGreaterThan(0.85 * 1_200);
    expect(after.length).toBeLessThanOrEqual(1_212);
  });

  test.each([
    ['of 5 requests', 'requests', 5, 10],
    ['of fewer tokens than one call can use', 'tokens', 500, 2],
  ] as const)('%s stops no line for ever', async (_what, type, value, calls) => {
    const world = new World({ type, value });
    world.worker(3);
    await vi.advanceTimersByTimeAsync(3 * minuteMs);
    await world.stop();
    expect(world.sent.line.length).toBeGreaterThanOrEqual(calls);
  });

  test('does not stop large calls behind small ones', async () => {
    const world = new World({ type: 'tokens', value: 6_000 });
    world.worker(3);
    world.api(2_000);
    await vi.advanceTimersByTimeAsync(3 * minuteMs);
    await world.stop();
    expect(world.sent.line.length).toBeGreaterThan(50);
  });
});
