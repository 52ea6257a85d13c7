import { sql } from 'kysely';
import { describe, expect, test, vi } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import {
  closedLagSeconds,
  logStart,
  readClosed,
  type Checkpoint,
  type PositionedEvent,
} from '#libs/event-log/read-events.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { insertEventSql } from '#test/insert-event.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { chunkRedelivered, commandOn, createBatches } from './streams.ts';

// 8 writers, the subscriber and the test itself.
const database = useTestDatabase({ max: 12, lockTimeoutMs: 30_000, connectionTimeoutMs: 30_000 });

/** A generator of numbers below `below`, the same in every run. */
function seededRandom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Reads the closed log in small pages until `isEnough`, as a subscriber would, beside everything else that runs. */
async function subscribe(limit: number, isEnough: (events: readonly PositionedEvent[]) => boolean) {
  const events: PositionedEvent[] = [];
  let checkpoint = logStart;
  const deadline = Date.now() + 40_000;
  while (!isEnough(events)) {
    if (Date.now() > deadline) throw new Error(`the subscriber got ${events.length} events and no more`);
    const page = await readClosed(database.db, checkpoint, limit);
    events.push(...page);
    const last = page.at(-1);
    if (last) checkpoint = last;
    else await sleep(2);
  }
  return events;
}

const versionsOf = (events: readonly { streamId: string; streamVersion: number }[]) =>
  Object.fromEntries(
    [...Map.groupBy(events, (event) => event.streamId)].map(([id, list]) => [
      id,
      list.map((event) => event.streamVersion),
    ]),
  );

const countTo = (count: number): number[] => Array.from({ length: count }, (_, index) => index + 1);

async function storedVersions(streams: readonly string[], order: 'position' | 'transaction') {
  const by = order === 'position' ? sql`position` : sql`transaction_id, position`;
  const { rows } = await sql<{ streamId: string; streamVersion: number }>`
    select stream_id as "streamId", stream_version as "streamVersion" from event
    where stream_id = any(${streams}::text[]) order by ${by}`.execute(database.db);
  return versionsOf(rows);
}

describe.each([
  { name: 'one stream', streams: 1 },
  { name: 'many streams', streams: 25 },
])('8 writers on $name', ({ name, streams }) => {
  test('every order in which the log can be read is the order of the versions, for all and for a subscriber', async () => {
    const eventLog = createEventLog(database.db);
    const ids = Array.from({ length: streams }, (_, index) => `batch_${name}_${index}`);
    await createBatches(eventLog, ids);
    const written = new Map(ids.map((id) => [id, 2]));

    const write = async (writer: number): Promise<void> => {
      const random = seededRandom(writer + 1);
      for (let turn = 0; turn < 25; turn += 1) {
        // Sometimes two streams at once, named in any order: the log sorts them, so that no two writers lock crosswise.
        const chosen = [...new Set([ids[random(streams)] as string, ids[random(streams)] as string])];
        const events = countTo(1 + random(3)).map((number) => chunkRedelivered(writer * 10_000 + turn * 10 + number));
        await eventLog.transact(commandOn(...chosen), async (unit) => {
          for (const id of chosen) await unit.append(batchModel, id, events);
          // The positions are taken; others on other streams take higher ones and commit before this.
          if (random(3) === 0) await sleep(random(15));
        });
        for (const id of chosen) written.set(id, (written.get(id) ?? 0) + events.length);
      }
    };
    let writing = true;
    const subscribed = subscribe(7, (events) => {
      const ours = events.filter((event) => ids.includes(event.streamId));
      return !writing && ours.length >= [...written.values()].reduce((sum, count) => sum + count, 0);
    });
    await Promise.all(countTo(8).map(write));
    writing = false;
    const events = (await subscribed).filter((event) => ids.includes(event.streamId));

    const expected = Object.fromEntries(ids.map((id) => [id, countTo(written.get(id) ?? 0)]));
    expect(await storedVersions(ids, 'transaction')).toEqual(expected);
    expect(await storedVersions(ids, 'position')).toEqual(expected);
    expect(versionsOf(events)).toEqual(expected);
    expect(new Set(events.map((event) => event.eventId)).size).toBe(events.length);
    const rows = await database.db.selectFrom('batch').select(['id', 'version']).where('id', 'in', ids).execute();
    expect(Object.fromEntries(rows.map((row) => [row.id, row.version]))).toEqual(Object.fromEntries(written));
  });
});

describe('a transaction that commits late', () => {
  const rawInsert = `${insertEventSql({ stream_id: '$1::text' })} returning position`;
  const idsOf = (events: readonly PositionedEvent[]): string[] => events.map((event) => event.streamId);

  /** Everything that is there now and closed. */
  async function checkpointNow() {
    await vi.waitFor(
      async () => {
        const { rows } = await sql<{ open: number }>`select count(*)::int as open from event
          where transaction_id >= pg_snapshot_xmin(pg_current_snapshot())`.execute(database.db);
        expect(rows[0]?.open).toBe(0);
      },
      { timeout: 20_000 },
    );
    const { rows } = await sql<Checkpoint>`
      select epoch, transaction_id as "transactionId", position from event order by transaction_id desc, position desc limit 1
    `.execute(database.db);
    return rows[0] ?? logStart;
  }

  async function readNext(after: Checkpoint, count: number): Promise<PositionedEvent[]> {
    return await vi.waitFor(
      async () => {
        const events = await readClosed(database.db, after, 100);
        expect(events.length).toBeGreaterThanOrEqual(count);
        return events;
      },
      { timeout: 20_000 },
    );
  }

  test('with a lower position is waited for, not skipped', async () => {
    const after = await checkpointNow();
    const late = await database.pool.connect();
    try {
      await late.query('begin');
      const { rows: low } = await late.query(rawInsert, ['late_low']);
      const { rows: high } = await database.pool.query(rawInsert, ['early_high']);
      expect(high[0].position).toBeGreaterThan(low[0].position);
      // Committed, but not readable: for a whole second the subscriber gets nothing and the lag grows.
      const openedAt = Date.now();
      while (Date.now() - openedAt < 1_000) {
        expect(await readClosed(database.db, after, 100)).toEqual([]);
        await sleep(50);
      }
      expect(await closedLagSeconds(database.db)).toBeGreaterThan(0.9);
      await late.query('commit');
    } finally {
      late.release();
    }
    expect(idsOf(await readNext(after, 2))).toEqual(['late_low', 'early_high']);
  });

  test('with an older transaction id and a higher position comes first, and nothing is skipped', async () => {
    const after = await checkpointNow();
    const old = await database.pool.connect();
    try {
      await old.query('begin');
      await old.query('select pg_current_xact_id()');
      const { rows: first } = await database.pool.query(rawInsert, ['young_low']);
      const { rows: second } = await old.query(rawInsert, ['old_high']);
      expect(second[0].position).toBeGreaterThan(first[0].position);
      expect(await readClosed(database.db, after, 100)).toEqual([]);
      await old.query('commit');
    } finally {
      old.release();
    }
    const events = await readNext(after, 2);
    expect(idsOf(events)).toEqual(['old_high', 'young_low']);
    // In pages of one, by the checkpoint of the page before, the same.
    const [first] = await readClosed(database.db, after, 1);
    expect(first?.streamId).toBe('old_high');
    expect(idsOf(await readClosed(database.db, first ?? logStart, 1))).toEqual(['young_low']);
  });

  test('and is rolled back holds nothing up and leaves nothing behind', async () => {
    const after = await checkpointNow();
    const late = await database.pool.connect();
    try {
      await late.query('begin');
      await late.query(rawInsert, ['rolled_back']);
      await database.pool.query(rawInsert, ['committed']);
      expect(await readClosed(database.db, after, 100)).toEqual([]);
      await late.query('rollback');
    } finally {
      late.release();
    }
    expect(idsOf(await readNext(after, 1))).toEqual(['committed']);
  });
});
