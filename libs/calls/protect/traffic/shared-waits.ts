import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { readWaits, writeWait } from '#libs/limits/shared-waits.ts';
import { forgetOne } from './forget-one.ts';
import { beginWait, endWait, type SharedLane } from './lanes.ts';

/** Changes that are written at one time, and kept while the database is unavailable. */
const pendingMax = 1_000;
/** Smaller differences come from the round trip. */
const toleranceMs = 100;

/**
 * The rate-limit waits that processes share: each writes those that it begins or ends by a probe, and reads those of
 * others, also for lanes that it has not called yet.
 */
export class SharedWaits {
  readonly #clock: Clock;
  readonly #pending = new Map<string, SharedLane>();
  /** The ends of the waits that were read last, by this process's clock. */
  #known: ReadonlyMap<string, number> = new Map();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  untilMs(id: string): number {
    return this.#known.get(id) ?? 0;
  }

  /** The wait of a lane has changed here. Returns whether others have to know soon. */
  change(lane: SharedLane): boolean {
    const { id } = lane.shared;
    const known = this.untilMs(id);
    if (Math.abs(lane.rateLimitedUntilMs - known) < toleranceMs) return false;
    if (this.#pending.size >= pendingMax && !this.#pending.has(id)) forgetOne(this.#pending, () => true);
    this.#pending.set(id, lane);
    return true;
  }

  async sync(db: Kysely<Database>, lanes: () => Iterable<SharedLane>): Promise<void> {
    for (const [id, lane] of this.#pending) {
      const untilMs = lane.rateLimitedUntilMs;
      await writeWait(db, lane.shared, untilMs - this.#clock.now());
      if (lane.rateLimitedUntilMs === untilMs) this.#pending.delete(id);
    }
    const nowMs = this.#clock.now();
    const own = Array.from(lanes()).filter((lane) => lane.rateLimitedUntilMs > nowMs);
    const before = this.#known;
    const read = await readWaits(
      db,
      own.map(({ shared }) => shared.id),
    );
    this.#known = new Map(read.map(({ id, leftMs }) => [id, this.#clock.now() + leftMs]));
    for (const lane of lanes()) this.#adopt(lane, before);
  }

  #adopt(lane: SharedLane, before: ReadonlyMap<string, number>): void {
    const { id } = lane.shared;
    if (this.#pending.has(id)) return;
    const nowMs = this.#clock.now();
    const untilMs = this.#known.get(id);
    const differenceMs = (untilMs ?? nowMs) - lane.rateLimitedUntilMs;
    if (untilMs !== undefined && differenceMs > toleranceMs) beginWait(lane, untilMs, nowMs);
    // A probe of another process has succeeded.
    if (untilMs === undefined && before.has(id) && differenceMs < -toleranceMs) endWait(lane);
  }
}
