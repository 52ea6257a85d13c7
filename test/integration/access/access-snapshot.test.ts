import type { KyselyPlugin } from 'kysely';
import { sql } from 'kysely';
import { expect, test, vi } from 'vitest';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { createGatewayKey, hashKey } from '#libs/identity/gateway-key.ts';
import type { Caller } from '#libs/http/caller.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { bearer, callOf, createProcess, metadata, started, type AccessProcess, allRights } from './access-rig.ts';

const database = useTestDatabase();

async function createKey(access: AccessProcess, workspaceId: string): Promise<{ id: string; token: string }> {
  const { record, key } = await access.apiKeys.create(callOf(workspaceId), allRights, metadata, { name: 'k' });
  return { id: record.id, token: key.reveal() };
}

const createVirtualKey = (access: AccessProcess, workspaceId: string, slug: string, key = 'sk-first-value') =>
  access.virtualKeys.create(callOf(workspaceId), metadata, { name: slug, slug, provider: 'openai', key });

/** Whether the process's memory alone, without a second look, knows the key. */
function isKnown({ authenticate }: AccessProcess, token: string): boolean {
  try {
    const caller = authenticate(bearer(token));
    if (!(caller instanceof Promise)) return true;
    caller.catch(() => {});
    return false;
  } catch {
    return false;
  }
}

/** Counts the statements that go through a Kysely instance. */
function createCounter() {
  const counter = { statements: 0 };
  const plugin: KyselyPlugin = {
    transformQuery({ node }) {
      counter.statements += 1;
      return node;
    },
    transformResult: async ({ result }) => result,
  };
  return { counter, plugin };
}

test.each([
  ['NOTIFY', { pollMs: 600_000 }],
  ['polling, when every NOTIFY is lost,', { listenConnectionString: null }],
])('a key made, then revoked in one process is accepted, then refused in another by %s', async (_by, options) => {
  const writer = createProcess(database);
  const other = createProcess(database, options);
  await using _running = await started(writer, other);
  const { workspaceId } = await bootstrap(writer, null);
  const { id, token } = await createKey(writer, workspaceId);
  expect(isKnown(writer, token)).toBe(true);
  await vi.waitUntil(() => isKnown(other, token), { timeout: 5_000, interval: 10 });
  await writer.apiKeys.revoke(workspaceId, allRights, id, metadata);
  expect(isKnown(writer, token)).toBe(false);
  await vi.waitUntil(() => !isKnown(other, token), { timeout: 5_000, interval: 10 });
  await expect((async () => other.authenticate(bearer(token)))()).rejects.toMatchObject({ kind: 'unauthenticated' });
});

test('a key that another process made a moment ago is found by looking once more', async () => {
  const writer = createProcess(database);
  const other = createProcess(database, { listenConnectionString: null, pollMs: 600_000 });
  await using _running = await started(writer, other);
  const { workspaceId } = await bootstrap(writer, null);
  const { id, token } = await createKey(writer, workspaceId);
  expect(await other.authenticate(bearer(token))).toMatchObject({ keyId: id, workspaceId });
  expect(other.authenticate(bearer(token))).not.toBeInstanceOf(Promise);
  await createVirtualKey(writer, workspaceId, 'just-made');
  const credentials = { virtualKey: null, provider: null, providerKey: null, customHost: null, config: null };
  const defaults = { configId: null, allowsConfigOverride: true };
  const found = await other.routing.targetOf({ workspaceId, credentials, model: '@just-made/m', defaults });
  expect(found.target.apiKey?.reveal()).toBe('sk-first-value');
});

test('200 keys that are unknown, looked up at the same time, cost one query, and none when they come again', async () => {
  await bootstrap(createProcess(database), null);
  const { counter, plugin } = createCounter();
  const access = createProcess(
    { ...database, connectionString: database.connectionString, db: database.db.withPlugin(plugin) },
    { listenConnectionString: null, pollMs: 600_000 },
  );
  await using _running = await started(access);
  const tokens = Array.from({ length: 200 }, () => createGatewayKey().reveal());
  counter.statements = 0;
  for (const expected of [1, 1]) {
    const outcomes = await Promise.allSettled(tokens.map(async (token) => access.authenticate(bearer(token))));
    expect(outcomes.every((outcome) => outcome.status === 'rejected')).toBe(true);
    expect(counter.statements).toBe(expected);
  }
});

test('a key that is made while 200 others look for it is found by all of them', async () => {
  const writer = createProcess(database);
  const { counter, plugin } = createCounter();
  const access = createProcess(
    { ...database, connectionString: database.connectionString, db: database.db.withPlugin(plugin) },
    { listenConnectionString: null, pollMs: 600_000 },
  );
  await using _running = await started(writer, access);
  const { workspaceId } = await bootstrap(writer, null);
  const { token } = await createKey(writer, workspaceId);
  counter.statements = 0;
  const callers = await Promise.all(
    Array.from({ length: 200 }, async (): Promise<Caller> => access.authenticate(bearer(token))),
  );
  expect(new Set(callers).size).toBe(1);
  // The version, the four lists of ids (of keys, virtual keys, configs and guardrails), and the new key's row.
  expect(counter.statements).toBeLessThanOrEqual(6);
});

test('a poll that was answered before a change does not stand for one that was asked for after it', async () => {
  const writer = createProcess(database);
  const answered = Promise.withResolvers<void>();
  const gate = Promise.withResolvers<void>();
  let isHeld = false;
  const holdAnswers: KyselyPlugin = {
    transformQuery: ({ node }) => node,
    async transformResult({ result }) {
      if (isHeld) {
        answered.resolve();
        await gate.promise;
      }
      return result;
    },
  };
  const other = createProcess(
    { connectionString: database.connectionString, db: database.db.withPlugin(holdAnswers) },
    { listenConnectionString: null, pollMs: 600_000 },
  );
  await using _running = await started(writer, other);
  const { workspaceId } = await bootstrap(writer, null);
  await other.snapshot.refresh();
  isHeld = true;
  const early = other.snapshot.refresh();
  await answered.promise;
  const { token } = await createKey(writer, workspaceId);
  const asked = other.snapshot.refresh();
  gate.resolve();
  await asked;
  expect(isKnown(other, token)).toBe(true);
  await early;
});

test('without an answer of the database for the allowed time nobody is let in, and everybody again afterwards', async () => {
  let nowMs = 0;
  const access = createProcess(database, {
    pollMs: 600_000,
    listenConnectionString: null,
    staleAfterMs: 15 * 60_000,
    monotonicMs: () => nowMs,
  });
  await using _running = await started(access);
  const { workspaceId } = await bootstrap(access, null);
  const { token } = await createKey(access, workspaceId);
  nowMs = 15 * 60_000;
  expect(access.authenticate(bearer(token))).toMatchObject({ workspaceId });
  nowMs = 15 * 60_000 + 1;
  expect(() => access.authenticate(bearer(token))).toThrow(
    expect.objectContaining({ kind: 'unavailable', code: 'access_unavailable' }),
  );
  await access.snapshot.refresh();
  expect(access.authenticate(bearer(token))).toMatchObject({ workspaceId });
});

test('a snapshot that was never loaded answers nobody', () => {
  const access = createProcess(database);
  expect(() => access.authenticate(bearer(createGatewayKey().reveal()))).toThrow(
    expect.objectContaining({ kind: 'unavailable' }),
  );
});

test('when the server ends all sessions, the listener comes back and changes arrive again', async () => {
  const writer = createProcess(database);
  const other = createProcess(database, { pollMs: 600_000 });
  await using _running = await started(writer, other);
  const { workspaceId } = await bootstrap(writer, null);
  const listeners = sql<{ pid: number }>`
    select pid from pg_stat_activity
    where datname = current_database() and application_name = 'sluice-access-listener' and query like 'listen %'`;
  const pids = async () => (await listeners.execute(database.db)).rows.map((row) => row.pid);
  await vi.waitUntil(async () => (await pids()).length === 2, { timeout: 10_000 });
  const before = await pids();
  for (const pid of before) await sql`select pg_terminate_backend(${pid})`.execute(database.db);
  await vi.waitUntil(
    async () => {
      const now = await pids();
      return now.length === 2 && now.every((pid) => !before.includes(pid));
    },
    { timeout: 10_000 },
  );
  const { token } = await createKey(writer, workspaceId);
  await vi.waitUntil(() => isKnown(other, token), { timeout: 5_000, interval: 10 });
});

test('a rotated provider key is used by every process, a deleted virtual key by none', async () => {
  const writer = createProcess(database);
  const other = createProcess(database);
  await using _running = await started(writer, other);
  const { workspaceId } = await bootstrap(writer, null);
  await createVirtualKey(writer, workspaceId, 'rotating');
  const used = (): string | undefined => other.snapshot.findCredential(workspaceId, 'rotating')?.apiKey?.reveal();
  await vi.waitUntil(() => used() === 'sk-first-value', { timeout: 5_000, interval: 10 });
  await writer.virtualKeys.update(workspaceId, 'rotating', metadata, { key: 'sk-second-value' });
  await vi.waitUntil(() => used() === 'sk-second-value', { timeout: 5_000, interval: 10 });
  await writer.virtualKeys.remove(workspaceId, 'rotating', metadata);
  expect(writer.snapshot.findCredential(workspaceId, 'rotating')).toBeUndefined();
  await vi.waitUntil(() => used() === undefined, { timeout: 5_000, interval: 10 });
});

test('among 9,000 keys one change is fetched, not 9,000 rows, and every other key stays as it was', async () => {
  const { counter, plugin } = createCounter();
  const access = createProcess(
    { connectionString: database.connectionString, db: database.db.withPlugin(plugin) },
    { listenConnectionString: null, pollMs: 600_000 },
  );
  const { workspaceId } = await bootstrap(access, null);
  await sql`
    insert into resource (id, workspace_id, version, updated_at, kind, lookup, data, created_at)
    select 'key_many_' || n, ${workspaceId}, 1, now(), 'api_key', digest,
      jsonb_build_object('name', 'many', 'digest', digest, 'last_four', '', 'scopes', null, 'defaults', '{}'::jsonb,
        'expires_at', null), now()
    from generate_series(1, 9000) as n
      cross join lateral (select encode(sha256(convert_to('many-' || n, 'UTF8')), 'hex') as digest) as made`.execute(
    database.db,
  );
  await using _running = await started(access);
  const known = () => Array.from({ length: 9_000 }, (_, index) => isKnown(access, `many-${index + 1}`));
  expect(known().every(Boolean)).toBe(true);
  const entry = access.snapshot.findApiKey(hashKey('many-1'));
  await access.apiKeys.revoke(workspaceId, allRights, 'key_many_5000', metadata);
  expect(known().flatMap((isLive, index) => (isLive ? [] : [index + 1]))).toEqual([5000]);
  counter.statements = 0;
  await createKey(access, workspaceId);
  // The command itself, then: the version, the list of ids, and the size and the row of the one key that is new.
  expect(counter.statements).toBeLessThan(15);
  expect(access.snapshot.findApiKey(hashKey('many-1'))).toBe(entry);
});

test('stop is idempotent, also before start, and ends the listening session', async () => {
  const access = createProcess(database);
  await access.snapshot.stop?.();
  await access.snapshot.stop?.();
  const other = createProcess(database);
  await other.snapshot.start?.();
  await other.snapshot.stop?.();
  await other.snapshot.stop?.();
});
