import { randomBytes } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { Database } from '#libs/database/schema.ts';
import type { CacheEntry } from '#libs/calls/protect/response-cache/cache-entry.ts';
import { createStoredAnswers, type StoredAnswers } from '#libs/calls/protect/response-cache/stored-answers.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';

let database: TestDatabase;
let db: Kysely<Database>;
let stored: StoredAnswers;

beforeAll(async () => {
  database = await createTestDatabase();
  ({ db } = database);
  stored = createStoredAnswers(db);
});
afterAll(() => database.drop());
beforeEach(() => sql`truncate response_cache`.execute(db));

const key = (): Buffer => randomBytes(32);
const entry = (text: string, more: Partial<CacheEntry> = {}): CacheEntry => ({
  head: {
    kind: 'json',
    hasUsageChunk: false,
    contentType: 'application/json',
    model: 'm',
    finishReason: null,
    usage: { inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 },
  },
  body: Buffer.from(text),
  createdAtMs: Date.now(),
  expiresAtMs: Date.now() + 60_000,
  ...more,
});

test('an entry is read as it was kept, by its own workspace only', async () => {
  const name = key();
  const kept = entry('{"é":"\u0000"}');
  await stored.keep([{ workspaceId: 'a', key: name, entry: kept }]);
  expect(await stored.find('a', name)).toEqual(kept);
  expect(await stored.find('b', name)).toBeNull();
  expect(await stored.find('a', key())).toBeNull();
});

test('the later of two entries with one key is kept, in one group and in two', async () => {
  const name = key();
  const row = (text: string) => ({ workspaceId: 'a', key: name, entry: entry(text) });
  await stored.keep([row('1'), row('2')]);
  expect((await stored.find('a', name))?.body.toString()).toBe('2');
  await stored.keep([row('3')]);
  expect((await stored.find('a', name))?.body.toString()).toBe('3');
});

test('an expired entry is not found, and the sweep deletes it', async () => {
  const name = key();
  await stored.keep([
    { workspaceId: 'a', key: name, entry: entry('old', { expiresAtMs: Date.now() - 1_000 }) },
    { workspaceId: 'a', key: key(), entry: entry('new') },
  ]);
  expect(await stored.find('a', name)).toBeNull();
  expect(await stored.sweep(1_000_000)).toBe(1);
});

test('the sweep takes the oldest of a workspace above its bytes, and nothing of another', async () => {
  const names = [key(), key(), key()];
  await stored.keep(
    names.map((name, age) => ({
      workspaceId: 'a',
      key: name,
      entry: entry('x'.repeat(100), { createdAtMs: age * 1_000 }),
    })),
  );
  const other = key();
  await stored.keep([{ workspaceId: 'b', key: other, entry: entry('x'.repeat(100), { createdAtMs: 0 }) }]);
  expect(await stored.sweep(250)).toBe(1);
  const found = await Promise.all(names.map((name) => stored.find('a', name)));
  expect(found.map((one) => one !== null)).toEqual([false, true, true]);
  expect(await stored.find('b', other)).not.toBeNull();
});

test('the tables write no WAL', async () => {
  const { rows } = await sql<{ name: string }>`
    select relname as name from pg_class where relname in ('response_cache', 'provider_circuit')
    and relpersistence = 'u' order by 1`.execute(db);
  expect(rows.map((row) => row.name)).toEqual(['provider_circuit', 'response_cache']);
});
