import { isTransient } from '#libs/database/database-error.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

/** Something that is counted, because recording it each time would let anyone fill the log. */
export type Fact = {
  /** The workspace in whose share of the memory it is counted. */
  workspaceId: string;
  /** Facts with the same key are counted together. */
  key: string;
  address: string;
  /** What is counted apart within them, such as the ID of a file. */
  item?: string;
};

/** How often each name occurred. `others`: how often further names did, which are only counted together. */
type Tally = { counts: Map<string, number>; others: number };

export type Counted<Kind extends Fact> = {
  first: Kind;
  count: number;
  firstAt: number;
  lastAt: number;
  addresses: Tally;
  items: Tally;
};

type Deps<Kind extends Fact> = {
  /** Names the loop that writes. */
  name: string;
  /** Appends an event. */
  write: (counted: Counted<Kind>) => Promise<void>;
  logger: Logger;
  now: () => number;
};

export type CountedFacts<Kind extends Fact> = BackgroundLoop & {
  /** Counts a fact in memory; it is written within a second or two. The cost is three map lookups. */
  count: (fact: Kind) => void;
  /** Writes all facts, including those whose minute has not ended. For the end of the process, and for tests. */
  flush: () => Promise<void>;
  /** The number of facts without an event: too many different ones arrived in a minute, or they cannot be recorded. */
  dropped: () => number;
};

type Entry<Kind extends Fact> = { workspaceId: string; counted: Counted<Kind> | null; dueAt: number };

const tickMs = 1_000;
// Facts with the same key have at most one event per minute.
const windowMs = 60_000;
const entriesMax = 5_000;
// One workspace that keeps creating keys must not use up all entries either.
const entriesOfWorkspaceMax = 500;
const namesMax = 20;

function add(tally: Tally, name: string | undefined, count = 1): void {
  if (name === undefined) return;
  const before = tally.counts.get(name);
  if (before === undefined && tally.counts.size >= namesMax) tally.others += count;
  else tally.counts.set(name, (before ?? 0) + count);
}

function addAll(tally: Tally, { counts, others }: Tally): void {
  for (const [name, count] of counts) add(tally, name, count);
  tally.others += others;
}

/** Adds later facts to those that could not be written. */
function addLater<Kind extends Fact>(counted: Counted<Kind>, later: Counted<Kind> | null): Counted<Kind> {
  if (later === null) return counted;
  addAll(counted.addresses, later.addresses);
  addAll(counted.items, later.items);
  return { ...counted, count: counted.count + later.count, lastAt: later.lastAt };
}

/**
 * Counts facts and writes them as events. The first fact of a key is written immediately; the others of the same minute are
 * written together. A killed process loses the facts that it had counted but not written, which is at most one minute of
 * them. An unavailable database delays the events.
 */
export function createCountedFacts<Kind extends Fact>({ name, write, logger, now }: Deps<Kind>): CountedFacts<Kind> {
  const entries = new Map<string, Entry<Kind>>();
  /** How many entries each workspace has. */
  const taken = new Map<string, number>();
  let dropped = 0;

  const take = (workspaceId: string, change: 1 | -1): void => {
    const places = (taken.get(workspaceId) ?? 0) + change;
    if (places === 0) taken.delete(workspaceId);
    else taken.set(workspaceId, places);
  };

  const writeEntry = async (entry: Entry<Kind>, counted: Counted<Kind>): Promise<void> => {
    // Facts that arrive in the meantime are counted anew, and none is counted twice.
    entry.counted = null;
    try {
      await write(counted);
      entry.dueAt = now() + windowMs;
    } catch (error) {
      if (isTransient(error)) {
        entry.counted = addLater(counted, entry.counted);
        throw error;
      }
      // It would fail again, and the facts after it would never be written.
      dropped += counted.count;
      logger.error({ err: error, key: counted.first.key, count: counted.count }, 'counted facts cannot be recorded');
    }
  };

  const writeDue = async (all: boolean): Promise<void> => {
    for (const [key, entry] of entries) {
      if (!all && now() < entry.dueAt) continue;
      if (entry.counted === null) {
        entries.delete(key);
        take(entry.workspaceId, -1);
      }
      // If this fails, the database is unavailable, and the other entries can wait as well.
      else await writeEntry(entry, entry.counted);
    }
  };

  const loop = createBackgroundLoop({
    name,
    periodMs: tickMs,
    run: () => (entries.size === 0 ? 'idle' : writeDue(false)),
    logger,
  });

  return {
    ...loop,
    async stop() {
      await loop.stop();
      await writeDue(true).catch((error: unknown) => logger.warn({ err: error }, 'counted facts were not recorded'));
    },
    count(fact) {
      const at = now();
      let entry = entries.get(fact.key);
      if (entry === undefined) {
        const { workspaceId } = fact;
        if (entries.size >= entriesMax || (taken.get(workspaceId) ?? 0) >= entriesOfWorkspaceMax) {
          dropped += 1;
          return;
        }
        entry = { workspaceId, counted: null, dueAt: at };
        entries.set(fact.key, entry);
        take(workspaceId, 1);
      }
      entry.counted ??= {
        first: fact,
        count: 0,
        firstAt: at,
        lastAt: at,
        addresses: emptyTally(),
        items: emptyTally(),
      };
      entry.counted.count += 1;
      entry.counted.lastAt = at;
      add(entry.counted.addresses, fact.address);
      add(entry.counted.items, fact.item);
    },
    flush: () => writeDue(true),
    dropped: () => dropped,
  };
}

const emptyTally = (): Tally => ({ counts: new Map(), others: 0 });
