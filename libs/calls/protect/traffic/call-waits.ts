import type { ForwardRequest, HeldPlace, Target, Wait } from '#libs/calls/call.ts';
import { callAborted, shuttingDown } from '#libs/calls/cancelled.ts';
import { spreadWait } from '#libs/calls/retry-waits.ts';
import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { KnownCircuit } from './circuits.ts';
import type { Lane } from './lanes.ts';
import type { Begun } from './paced-calls.ts';

/** The members of a call's request that are used here. */
export type TrafficRequest = Pick<
  ForwardRequest,
  'model' | 'breaker' | 'isBackground' | 'turn' | 'place' | 'waitWithoutPermit' | 'signal'
>;

export type TrafficCall = { request: TrafficRequest; target: Target; model: string; obeysRateLimit: boolean };

const whatWaits = ({ target, model }: TrafficCall, reason: Wait['reason'], untilMs: number | null): Wait => ({
  reason,
  label: target.label,
  model,
  untilMs,
});

// A live call that comes this much too early waits instead of being rejected. A client that returns at the advised time
// must not fail because its clock is slightly fast.
const earlyMsMax = 100;

type Deps = {
  clock: Clock;
  random: () => number;
  sleep: (ms: number, signal: AbortSignal) => Promise<void>;
  waitMsMax: number;
  stopping: AbortSignal;
  /** Aborts when the credential changes. */
  changeOf: (credentialId: string) => AbortSignal;
};

/** The waits of calls before they begin, and the errors of those that do not wait. */
export class CallWaits {
  readonly #deps: Deps;

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  /** Waits for the end of a rate-limit wait or of an open circuit. Returns when it makes sense to try again. */
  async untilUnblocked(
    call: TrafficCall,
    lane: Lane,
    { ms, limitMs, isRateLimit }: ReturnType<typeof blockOf>,
    sinceMs: number,
  ): Promise<void> {
    const { clock, random, sleep, waitMsMax, stopping, changeOf } = this.#deps;
    const { isBackground = false, waitWithoutPermit, signal } = call.request;
    const now = clock.now();
    const isEarly = isRateLimit && limitMs <= earlyMsMax && now - sinceMs < waitMsMax;
    if (!isBackground && !isEarly) throw isRateLimit ? refusals.rateLimited(call, limitMs) : refusals.open(call, ms);
    const waitMs = spreadWait(ms, random);
    const changed = changeOf(call.target.credentialId ?? '');
    const wakes = isRateLimit ? [lane.probed.signal, changed] : [];
    const wait = (end: AbortSignal): Promise<void> => sleep(waitMs, AbortSignal.any([end, stopping, ...wakes]));
    if (waitWithoutPermit === undefined) await wait(toAbortSignal(signal));
    else await waitWithoutPermit(whatWaits(call, isRateLimit ? 'rate_limited' : 'circuit_open', now + waitMs), wait);
    if (signal.aborted || stopping.aborted) throw this.#aborted(call);
    if (isBackground && changed.aborted) throw refusals.changed(call);
  }

  /**
   * Waits for what `take` waits for. `giveBack`: the call has it, but could not get the permit of its batch again. `hold`:
   * how similar calls can wait for it before they begin.
   */
  async #for<Taken>(
    call: TrafficCall,
    take: (signal: AbortSignal) => Promise<Taken>,
    giveBack: (taken: Taken) => void,
    hold?: Wait['hold'],
  ): Promise<Taken> {
    const { stopping, waitMsMax } = this.#deps;
    const { isBackground = false, waitWithoutPermit, signal } = call.request;
    const wait = async (end: AbortSignal, ...ends: AbortSignal[]): Promise<Taken> => {
      try {
        // A combined signal costs a waiting line of a batch more than all else here.
        return await take(ends.length === 0 ? end : AbortSignal.any([end, ...ends]));
      } catch {
        throw end.aborted || stopping.aborted ? this.#aborted(call) : refusals.busy(call);
      }
    };
    // The waits of a line also end when the process stops.
    if (waitWithoutPermit === undefined) {
      const isTimed = !isBackground && waitMsMax < Infinity;
      return await wait(toAbortSignal(signal), stopping, ...(isTimed ? [AbortSignal.timeout(waitMsMax)] : []));
    }
    const taken: Taken[] = [];
    try {
      await waitWithoutPermit({ ...whatWaits(call, 'provider_busy', null), ...(hold && { hold }) }, async (end) => {
        taken.push(await wait(end));
      });
    } catch (error) {
      for (const one of taken) giveBack(one);
      throw error;
    }
    return taken[0] as Taken;
  }

  /**
   * Begins a call in its lane: a background call within the learned limit, any call within that of its credential. Returns
   * what `recordEnd` needs.
   */
  async begin(call: TrafficCall, { paced, queue }: Lane): Promise<Begun | undefined> {
    const { isBackground = false, turn = '', place } = call.request;
    let begun: Begun | undefined;
    if (isBackground) {
      const wait = (signal: AbortSignal): Promise<Begun> => paced.wait(turn, signal);
      const giveBack = (one: Begun): void => paced.end('unknown', null, one);
      const hold = (signal: AbortSignal): Promise<HeldPlace> => paced.hold(turn, signal);
      begun = paced.tryBegin(place) ?? (await this.#for(call, wait, giveBack, hold));
    } else paced.beginLive();
    try {
      if (queue.tryAcquire()) return begun;
      if (!isBackground && queue.isFull()) throw refusals.busy(call);
      await this.#for(
        call,
        (signal) => queue.wait(!isBackground, signal),
        () => queue.release(),
      );
      return begun;
    } catch (error) {
      paced.end('unknown', null, begun);
      throw error;
    }
  }

  #aborted({ request, target }: TrafficCall): GatewayError {
    return request.signal.aborted ? callAborted(target.label) : shuttingDown();
  }
}

/**
 * The reason that blocks a call, and for how long. `limitMs` is the rate-limit wait as the provider asked for it;
 * `isProbe`: the wait is not over yet, but this call is let through.
 */
export function blockOf(lane: Lane, call: TrafficCall, known: KnownCircuit | undefined, nowMs: number) {
  const limitMs = call.obeysRateLimit ? lane.rateLimitedUntilMs - nowMs : 0;
  const rateLimitedMs = Math.min(limitMs, lane.probeAtMs - nowMs);
  const openMs = known?.circuit.blockedMs(nowMs) ?? 0;
  const ms = Math.max(rateLimitedMs, openMs, 0);
  return { ms, limitMs, isRateLimit: rateLimitedMs >= openMs, isProbe: ms === 0 && limitMs > 0 };
}

type Refused = { target: Target; model: string };

const what = ({ model }: Refused): string => (model === '' ? 'this operation' : model.slice(0, 200));

/** The errors of calls that are rejected. Each names its target and when to try again. */
const refusals = {
  rateLimited: (call: Refused, retryAfterMs: number): GatewayError =>
    new GatewayError(
      'rate_limited',
      'provider_rate_limited',
      `${call.target.label} is rate-limited for ${what(call)} and is not called until the limit has passed.`,
      { retryAfterMs },
    ),
  changed: ({ target }: Refused): GatewayError =>
    new GatewayError(
      'rate_limited',
      'credential_changed',
      `The credential of ${target.label} changed while this call was waiting. Send the request again.`,
      { retryAfterMs: 0 },
    ),
  open: (call: Refused, retryAfterMs: number): GatewayError =>
    new GatewayError(
      'unavailable',
      'circuit_open',
      `${call.target.label} is not called for ${what(call)} because its previous calls failed and its circuit breaker is open.`,
      { retryAfterMs },
    ),
  busy: ({ target }: Refused): GatewayError =>
    new GatewayError(
      'unavailable',
      'provider_busy',
      `Too many calls to ${target.label} are already in flight and waiting. Send the request again shortly.`,
      { retryAfterMs: 1_000 },
    ),
};
