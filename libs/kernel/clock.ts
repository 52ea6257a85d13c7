/**
 * Epoch milliseconds. Use the database's clock (database-clock.ts) for values that are compared with times in the
 * database.
 */
export type Clock = { now(): number };

export const systemClock: Clock = { now: () => Date.now() };

/**
 * Epoch milliseconds that a change of the system's clock does not move: for waits, circuits and other durations. After
 * such a change it differs from the system's clock.
 */
export const steadyClock: Clock = { now: () => performance.timeOrigin + performance.now() };

/** Epoch milliseconds to the whole seconds of the public API; null stays null. */
export function toUnixSeconds(time: Date): number;
export function toUnixSeconds(time: Date | null): number | null;
export function toUnixSeconds(time: Date | null): number | null {
  return time === null ? null : Math.floor(time.getTime() / 1000);
}
