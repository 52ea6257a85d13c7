import type { Wait } from '#libs/calls/call.ts';
import type { OnWait } from './line-permit.ts';

/**
 * Decides when to snooze a chunk: when all of its lines wait, it only occupies a slot that chunks with callable lines
 * could use.
 */
export type SnoozeWatch = {
  /** A line begins to wait. */
  onWait: OnWait;
  lineStarted(): void;
  /** A line is over, with or without a result. */
  lineEnded(): void;
  /** All lines have started. */
  allLinesStarted(): void;
  /** Aborts when the chunk is to be snoozed. */
  snooze: AbortSignal;
  /** When the first of its lines can continue, by the clock of `now`; set when `snooze` aborts. */
  resumeAtMs(): number;
  stop(): void;
};

/** Snooze after this long without a result, or when none can come for this long, while all lines wait. */
const idleMsMax = 3_000;
const checkEveryMs = 1_000;
/** The shortest snooze. Doubled with each snooze of the chunk, up to 80 s. */
const snoozeMsMin = 5_000;
const doublingsMax = 4;
/** A provider's wait can end early, so it is called again after this long. */
const snoozeMsMax = 300_000;

/**
 * `isCrowded`: other chunks need the slot. A chunk is not snoozed while one of its lines waits for its next retry: the
 * count of its attempts would restart, and a provider that always fails would be called until the batch expires.
 */
export function createSnoozeWatch(deps: {
  now: () => number;
  isCrowded: () => boolean;
  /** How often the chunk was snoozed before. Each snooze costs a transaction and an event. */
  snoozes: number;
}): SnoozeWatch {
  const { now, isCrowded, snoozes } = deps;
  const ownMsMin = snoozeMsMin * 2 ** Math.min(snoozes, doublingsMax);
  const snooze = new AbortController();
  const waits = new Set<Wait>();
  let active = 0;
  let retries = 0;
  let areAllStarted = false;
  let lastResultMs = now();
  let resumeAtMs = 0;

  const check = (): void => {
    if (snooze.signal.aborted || !areAllStarted || active === 0 || waits.size < active || retries > 0) return;
    const nowMs = now();
    const soonest = [...waits].reduce((least, { untilMs }) => Math.min(least, untilMs ?? 0), Number.POSITIVE_INFINITY);
    const isIdle = Math.max(nowMs - lastResultMs, soonest - nowMs) >= idleMsMax;
    if (!isIdle || !isCrowded()) return;
    resumeAtMs = Math.min(Math.max(soonest, nowMs + ownMsMin), nowMs + snoozeMsMax);
    snooze.abort();
  };
  const timer = setInterval(check, checkEveryMs).unref();

  return {
    onWait(what) {
      const wait = { ...what };
      const isRetry = what.reason === 'retry' || what.reason === 'gateway';
      waits.add(wait);
      if (isRetry) retries += 1;
      check();
      return () => {
        waits.delete(wait);
        if (isRetry) retries -= 1;
      };
    },
    lineStarted() {
      active += 1;
    },
    lineEnded() {
      active -= 1;
      lastResultMs = now();
    },
    allLinesStarted() {
      areAllStarted = true;
      check();
    },
    snooze: snooze.signal,
    resumeAtMs: () => resumeAtMs,
    stop: () => clearInterval(timer),
  };
}
