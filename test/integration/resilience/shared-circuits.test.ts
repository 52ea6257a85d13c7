import { sql } from 'kysely';
import { beforeEach, expect, test } from 'vitest';
import type { BreakerPolicy } from '#libs/contracts/configs/circuit-breaker.ts';
import type { Target } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createSharedCircuits, listCircuits, sweepCircuits } from '#libs/calls/protect/traffic/shared-circuits.ts';
import { createTraffic } from '#libs/calls/protect/traffic/traffic.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });
const breaker: BreakerPolicy = {
  failuresInRow: 1,
  failureShare: null,
  callsMin: 10,
  cooldownMs: 30_000,
  statuses: null,
};
const target: Target = {
  provider: 'openai',
  baseUrl: new URL('https://api.openai.com/v1'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: 'my-openai',
  credentialId: 'vk_1',
  workspaceId: 'ws_1',
};

/** One process; its clock may be far from the database's. */
function startProcess(aheadMs: number) {
  let now = Date.now() + aheadMs;
  const clock = { now: () => now };
  const traffic = createTraffic({ clock, random: () => 0 });
  const shared = createSharedCircuits({ db: database.db, circuits: traffic.circuits, clock, logger });
  const call = async (succeeds: boolean): Promise<void> => {
    const permit = await traffic.acquire({ model: 'm', breaker, signal: new AbortController().signal }, target);
    const error = new GatewayError('provider_failed', 'upstream_unreachable', 'x');
    permit.release(succeeds ? { status: 200, headers: {} } : { kind: 'failed', error });
  };
  return {
    call,
    shared,
    sync: shared.wake,
    isOpen: () => traffic.circuits.of(target, 'm', breaker).circuit.blockedMs(now) > 0,
    permit: (ms: number) => {
      now += ms;
    },
  };
}

beforeEach(() => sql`truncate provider_circuit`.execute(database.db));

test('a circuit that one process opens is open in another, whose clock differs, and closes there too', async () => {
  const [one, two] = [startProcess(0), startProcess(-3_600_000)];
  await one.call(false);
  await one.sync();
  expect(two.isOpen()).toBe(false);
  await two.sync();
  expect(two.isOpen()).toBe(true);
  expect(await listCircuits(database.db, 'ws_1')).toMatchObject([
    { provider: 'openai', label: 'my-openai', model: 'm', failures: 1, reason: 'upstream_unreachable' },
  ]);
  expect(await listCircuits(database.db, 'ws_2')).toEqual([]);
  one.permit(30_001);
  await one.call(true);
  await one.sync();
  await two.sync();
  expect(two.isOpen()).toBe(false);
  expect(await listCircuits(database.db, 'ws_1')).toEqual([]);
});

test('a database that is away changes nothing in the process, and is told when it is back', async () => {
  const [one, two] = [startProcess(0), startProcess(0)];
  await sql`alter table provider_circuit rename to hidden`.execute(database.db);
  await one.call(false);
  await one.sync();
  expect(one.isOpen()).toBe(true);
  await sql`alter table hidden rename to provider_circuit`.execute(database.db);
  await one.sync();
  await two.sync();
  expect(two.isOpen()).toBe(true);
});

test('a workspace that opens more circuits than are shared closes none of another', async () => {
  const [one, two] = [startProcess(0), startProcess(0)];
  await one.call(false);
  await one.sync();
  await two.sync();
  expect(two.isOpen()).toBe(true);
  await sql`insert into provider_circuit
    (id, workspace_id, credential_id, label, provider, model, opened_at, open_until, failures, reason)
    select 'x' || n, 'ws_2', 'vk_2', 'l', 'openai', 'm' || n, now() + interval '1 s', now() + interval '1 min', 1, 'r'
    from generate_series(1, 1100) as n`.execute(database.db);
  // Rows come as they lie in the table when nobody says otherwise, and one that was changed lies last.
  await sql`update provider_circuit set failures = 2 where workspace_id = 'ws_1'`.execute(database.db);
  await two.sync();
  await two.sync();
  expect(two.isOpen()).toBe(true);
  await sql`delete from provider_circuit where workspace_id = 'ws_1'`.execute(database.db);
  await two.sync();
  expect(two.isOpen()).toBe(false);
});

test('a circuit that nobody asks about any more is swept', async () => {
  const one = startProcess(0);
  await one.call(false);
  await one.sync();
  expect(await sweepCircuits(database.db)).toBe(0);
  await sql`update provider_circuit set open_until = now() - interval '2 hours'`.execute(database.db);
  expect(await sweepCircuits(database.db)).toBe(1);
});
