import { expect, test } from 'vitest';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { createFactLog, type Refusal } from './fact-log.ts';

const callerWith = (keyId: string, workspaceId = 'ws_1'): NonNullable<Refusal['who']> => ({
  workspaceId,
  keyId,
  principal: { type: 'service_key', id: keyId, role: null },
});

const refusal: Refusal = {
  who: callerWith('key_1'),
  method: 'GET',
  route: '/v1/logs',
  status: 403,
  code: 'missing_scope',
  message: 'lacks logs.read',
  address: '192.0.2.1',
  requestId: 'req_1',
};

function setUp() {
  const written: { stream: unknown; type: string; data: Record<string, unknown> }[] = [];
  const state = { nowMs: 1_000, isDatabaseDown: false, brokenStream: '' };
  const eventLog = {
    transact: async (_command: unknown, work: (unit: unknown) => Promise<unknown>) => {
      if (state.isDatabaseDown) throw Object.assign(new Error('the database is shutting down'), { code: '57P01' });
      return await work({
        append: async (
          _model: unknown,
          stream: unknown,
          [event]: { type: string; data: Record<string, unknown> }[],
        ) => {
          if (stream === state.brokenStream) throw new Error('this stream cannot be folded');
          written.push({ stream, type: event?.type ?? '', data: event?.data ?? {} });
        },
      });
    },
  } as unknown as EventLog;
  const log = createFactLog({ eventLog, logger: createTestLogger().logger, now: () => state.nowMs });
  return { log, written, state };
}

test('the first refusal is written at once, those of the next minute together', async () => {
  const { log, written, state } = setUp();
  log.countRefusal(refusal);
  await log.wake();
  expect(written).toEqual([
    {
      stream: 'key_1',
      type: 'api_key.request_refused',
      data: {
        method: 'GET',
        route: '/v1/logs',
        status: 403,
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
    log.countRefusal({ ...refusal, address: `192.0.2.${made % 50}` });
    await log.wake();
  }
  expect(written).toHaveLength(1);
  state.nowMs = 61_000;
  await log.wake();
  expect(written[1]?.data).toMatchObject({ count: 1_000, first_at: '1970-01-01T00:00:01.010Z' });
  expect(written[1]?.data['addresses']).toHaveLength(20);
  state.nowMs = 200_000;
  await log.wake();
  expect(written).toHaveLength(2);
});

test('other keys, routes and reasons are counted apart', async () => {
  const { log, written } = setUp();
  const others = [
    { who: callerWith('key_2') },
    { route: '/v1/files' },
    { method: 'POST' },
    { code: 'insufficient_scope' },
  ];
  for (const other of [{}, ...others, {}]) log.countRefusal({ ...refusal, ...other });
  await log.wake();
  expect(written.map(({ data }) => data['count'])).toEqual([2, 1, 1, 1, 1]);
});

test('what could not be written while the database was away is written when it is back', async () => {
  const { log, written, state } = setUp();
  log.countRefusal(refusal);
  log.countRefusal({ ...refusal, who: callerWith('key_2') });
  state.isDatabaseDown = true;
  await log.wake();
  log.countRefusal({ ...refusal, address: '192.0.2.9' });
  state.isDatabaseDown = false;
  await log.stop();
  expect(written.map(({ stream, data }) => [stream, data['count']])).toEqual([
    ['key_1', 2],
    ['key_2', 1],
  ]);
  expect(written[0]?.data['addresses']).toEqual(['192.0.2.1', '192.0.2.9']);
});

test('a fact that cannot be recorded does not delay the others', async () => {
  const { log, written, state } = setUp();
  state.brokenStream = 'key_1';
  log.countRefusal(refusal);
  log.countRefusal({ ...refusal, who: callerWith('key_2') });
  await log.wake();
  expect(written.map(({ stream }) => stream)).toEqual(['key_2']);
  expect(log.dropped()).toBe(1);
});

test('ever new refusals take a bounded place, and those that had none are counted', async () => {
  const { log, written } = setUp();
  for (let index = 0; index < 5_010; index += 1) {
    log.countRefusal({ ...refusal, who: callerWith(`key_${index}`, `ws_${index % 20}`) });
  }
  await log.wake();
  expect([written.length, log.dropped()]).toEqual([5_000, 10]);
});

test('ever new refusals of one workspace leave place to those of another, and have it again later', async () => {
  const { log, written, state } = setUp();
  for (let index = 0; index < 5_000; index += 1) log.countRefusal({ ...refusal, who: callerWith(`key_${index}`) });
  log.countRefusal({ ...refusal, who: callerWith('other', 'ws_2') });
  await log.wake();
  expect(written.map(({ stream }) => stream)).toContain('other');
  expect([written.length, log.dropped()]).toEqual([501, 4_500]);
  state.nowMs += 60_000;
  await log.wake();
  log.countRefusal({ ...refusal, who: callerWith('later') });
  await log.wake();
  expect(written.map(({ stream }) => stream)).toContain('later');
});

test('any number of wrong keys from any number of addresses is one event a minute', async () => {
  const { log, written, state } = setUp();
  log.countFailure({ reason: 'wrong_key', address: '192.0.2.1' });
  await log.wake();
  for (let made = 0; made < 1_000; made += 1) {
    state.nowMs += 10;
    log.countFailure({ reason: made % 2 === 0 ? 'wrong_key' : 'wrong_token', address: `192.0.2.${made % 100}` });
    await log.wake();
  }
  state.nowMs = 61_000;
  await log.wake();
  expect(written.map(({ stream, type, data }) => [stream, type, data['count']])).toEqual([
    ['org_default', 'organisation.request_refused', 1],
    ['org_default', 'organisation.request_refused', 1_000],
  ]);
  expect(written[1]?.data).toMatchObject({ reasons: { wrong_key: 500, wrong_token: 500 }, other_addresses: 800 });
  const addresses = written[1]?.data['addresses'] as object[];
  expect([addresses.length, addresses[0]]).toEqual([20, { address: '192.0.2.0', count: 10 }]);
});

test('failed guardrails are counted for each key, guardrail and verdict', async () => {
  const { log, written } = setUp();
  const result = { kind: 'input_guardrails', id: 'guardrail_1', slug: 'no-secrets', version: 3 } as const;
  const failed = { who: callerWith('key_1'), address: '192.0.2.1', requestId: 'req_1' };
  for (let made = 0; made < 3; made += 1) log.countVerdict({ ...failed, result: { ...result, verdict: 'denied' } });
  log.countVerdict({ ...failed, result: { ...result, verdict: 'failed' } });
  await log.wake();
  expect(written).toEqual([
    {
      stream: 'key_1',
      type: 'api_key.guardrail_failed',
      data: {
        ...result,
        verdict: 'denied',
        status: 446,
        count: 3,
        addresses: ['192.0.2.1'],
        first_at: '1970-01-01T00:00:01.000Z',
        last_at: '1970-01-01T00:00:01.000Z',
      },
    },
    expect.objectContaining({
      type: 'api_key.guardrail_failed',
      data: expect.objectContaining({ status: 246, count: 1 }),
    }),
  ]);
});

test('reads are counted for each key and kind of contents, with the first IDs', async () => {
  const { log, written, state } = setUp();
  const read = { who: callerWith('key_1'), kind: 'file', address: '192.0.2.1', requestId: 'req_1' } as const;
  for (let made = 0; made < 30; made += 1) log.countRead({ ...read, id: `file-${made}` });
  log.countRead({ ...read, kind: 'log_export', id: 'export_1' });
  const user = { ...callerWith('user_1'), principal: { type: 'user', id: 'user_1', role: 'auditor' } } as const;
  log.countRead({ ...read, who: user, id: 'file-1' });
  await log.wake();
  expect(written.map(({ stream, type, data }) => [stream, type, data['kind'], data['count']])).toEqual([
    ['key_1', 'api_key.contents_read', 'file', 30],
    ['key_1', 'api_key.contents_read', 'log_export', 1],
    ['user_1', 'user.contents_read', 'file', 1],
  ]);
  expect(written[0]?.data['ids']).toHaveLength(20);
  expect(written[0]?.data).toMatchObject({ reads_of_others: 10, addresses: ['192.0.2.1'] });
  log.countRead({ ...read, id: 'file-1' });
  state.nowMs += 1_000;
  await log.wake();
  expect(written).toHaveLength(3);
});
