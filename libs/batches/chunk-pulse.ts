import type { Wait } from '#libs/calls/call.ts';
import type { OnWait } from './line-place.ts';

/**
 * Watches over the lines of one chunk, whether they still come to something: a chunk all of whose lines wait only keeps
 * its room from chunks that could work.
 */
export type ChunkPulse = {
  begin: OnWait;
  started(): void;
  /** A line is over, with or without a result. */
  ended(): void;
  /** No line is left that has not started. */
  allStarted(): void;
  /** Aborts when the chunk is better put off. */
  putOff: AbortSignal;
  /** When the first of its lines can go on, in epoch milliseconds: as it was when the chunk was put off. */
  resumeAtMs(): number;
  stop(): void;
};

/** As long as this without a result, or without the hope of one, and all of them waiting. */
export const idleMsMax = 3_000;
const lookEveryMs = 1_000;
/** Of a wait that ends when there is room, or whose end is told too late; twice as long each time, up to 80 s. */
const putOffMsMin = 5_000;
const doublingsMax = 4;
/** What a provider says can change: after this long it is asked again. */
const putOffMsMax = 300_000;

/**
 * `isCrowded`: other chunks need the room. A chunk is not put off while one of its lines waits for the next of its counted
 * attempts: they would be counted anew, and a provider that always fails would be asked until the batch expires.
 */
export function createChunkPulse(deps: {
  now: () => number;
  isCrowded: () => boolean;
  /** How often the chunk was put off before: each time costs a transaction and an event. */
  putOffs: number;
}): ChunkPulse {
  const { now, isCrowded, putOffs } = deps;
  const putOffMs = putOffMsMin * 2 ** Math.min(putOffs, doublingsMax);
  const putOff = new AbortController();
  const waits = new Set<Wait>();
  let active = 0;
  let counted = 0;
  let isAllStarted = false;
  let lastSignMs = now();
  let resumeAtMs = 0;

  const look = (): void => {
    if (putOff.signal.aborted || !isAllStarted || active === 0 || waits.size < active || counted > 0) return;
    const nowMs = now();
    const soonest = [...waits].reduce((least, { untilMs }) => Math.min(least, untilMs ?? 0), Number.POSITIVE_INFINITY);
    const isIdle = Math.max(nowMs - lastSignMs, soonest - nowMs) >= idleMsMax;
    if (!isIdle || !isCrowded()) return;
    resumeAtMs = Math.min(Math.max(soonest, nowMs + putOffMs), nowMs + putOffMsMax);
    putOff.abort();
  };
  const timer = setInterval(look, lookEveryMs).unref();

  return {
    begin(what) {
      const wait = { ...what };
      const isCounted = what.reason === 'retry' || what.reason === 'gateway';
      waits.add(wait);
      if (isCounted) counted += 1;
      look();
      return () => {
        waits.delete(wait);
        if (isCounted) counted -= 1;
      };
    },
    started() {
      active += 1;
    },
    ended() {
      active -= 1;
      lastSignMs = now();
    },
    allStarted() {
      isAllStarted = true;
      look();
    },
    putOff: putOff.signal,
    resumeAtMs: () => resumeAtMs,
    stop: () => clearInterval(timer),
  };
}
