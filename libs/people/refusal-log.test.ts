import { expect, test } from 'vitest';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { createRefusalLog, type Refusal } from './refusal-log.ts';

const refusal: Refusal = {
  workspaceId: 'ws_1',
  keyId: 'key_1',
  method: 'GET',
  route: '/v1/logs',
  code: 'missing_scope',
  message: 'lacks logs.read',
  address: '192.0.2.1',
  requestId: 'req_1',
};

function setUp() {
  const written: { stream: unknown; data: Record<string, unknown> }[] = [];
  const state = { nowMs: 1_000, isDatabaseDown: false };
  const eventLog = {
    transact: async (_command: unknown, work: (unit: unknown) => Promise<unknown>) => {
      if (state.isDatabaseDown) throw new Error('away');
      return await work({
        append: async (_model: unknown, stream: unknown, [event]: { data: Record<string, unknown> }[]) =>
          void written.push({ stream, data: event?.data ?? {} }),
      });
    },
  } as unknown as EventLog;
  const log = createRefusalLog({ eventLog, logger: createTestLogger().logger, now: () => state.nowMs });
  return { log, written, state };
}

test('the first refusal is written at once, those of the next minute together', async () => {
  const { log, written, state } = setUp();
  log.note(refusal);
  await log.wake();
  expect(written).toEqual([
    {
      stream: 'key_1',
      data: {
        method: 'GET',
        route: '/v1/logs',
        code: 'missing_scope',
        message: 'lacks logs.read',
        count: 1,
        addresses: ['192.0.2.1'],
        first_at: '1970-01-01T00:00:01.000Z',
        last_at: '1970-01-01T00:00:01.000Z',
      },
    },
  ]);
  for (let made = 0; made < 1_000; made += 1) {
    state.nowMs += 10;
    log.note({ ...refusal, address: `192.0.2.${made % 50}` });
    await log.wake();
  }
  expect(written).toHaveLength(1);
  state.nowMs = 61_000;
  await log.wake();
  expect(written[1]?.data).toMatchObject({ count: 1_000, first_at: '1970-01-01T00:00:01.010Z' });
  expect(written[1]?.data['addresses']).toHaveLength(10);
  state.nowMs = 200_000;
  await log.wake();
  expect(written).toHaveLength(2);
});

test('other keys, routes and reasons are counted apart', async () => {
  const { log, written } = setUp();
  const others = [{ keyId: 'key_2' }, { route: '/v1/files' }, { method: 'POST' }, { code: 'insufficient_scope' }];
  for (const other of [{}, ...others, {}]) log.note({ ...refusal, ...other });
  await log.wake();
  expect(written.map(({ data }) => data['count'])).toEqual([2, 1, 1, 1, 1]);
});

test('what could not be written while the database was away is written when it is back', async () => {
  const { log, written, state } = setUp();
  log.note(refusal);
  log.note({ ...refusal, keyId: 'key_2' });
  state.isDatabaseDown = true;
  await log.wake();
  log.note({ ...refusal, address: '192.0.2.9' });
  state.isDatabaseDown = false;
  await log.stop();
  expect(written.map(({ stream, data }) => [stream, data['count']])).toEqual([
    ['key_1', 2],
    ['key_2', 1],
  ]);
  expect(written[0]?.data['addresses']).toEqual(['192.0.2.1', '192.0.2.9']);
});

test('ever new refusals take a bounded place, and those that had none are counted', async () => {
  const { log, written } = setUp();
  for (let index = 0; index < 5_010; index += 1) {
    log.note({ ...refusal, workspaceId: `ws_${index % 20}`, keyId: `key_${index}` });
  }
  await log.wake();
  expect([written.length, log.dropped()]).toEqual([5_000, 10]);
});

test('ever new refusals of one workspace leave place to those of another, and have it again later', async () => {
  const { log, written, state } = setUp();
  for (let index = 0; index < 5_000; index += 1) log.note({ ...refusal, keyId: `key_${index}` });
  log.note({ ...refusal, workspaceId: 'ws_2', keyId: 'other' });
  await log.wake();
  expect(written.map(({ stream }) => stream)).toContain('other');
  expect([written.length, log.dropped()]).toEqual([501, 4_500]);
  state.nowMs += 60_000;
  await log.wake();
  log.note({ ...refusal, keyId: 'later' });
  await log.wake();
  expect(written.map(({ stream }) => stream)).toContain('later');
});
