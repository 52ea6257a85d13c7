import { sql } from 'kysely';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { steadyClock } from '#libs/kernel/clock.ts';
import { eventually } from '#test/eventually.ts';
import { eventsOf, startFaultRig, type FaultRig } from './fault-rig.ts';
import { wireKeys } from './wire-keys.ts';

// Providers that are down for a while: the next target answers, and a circuit breaker spares the caller the wait.

let rig: FaultRig;
beforeAll(async () => {
  rig = await startFaultRig();
});
afterEach(() => vi.restoreAllMocks());
afterAll(() => rig.stop());

const get = async (path: string): Promise<Response> =>
  await fetch(`${rig.platform.baseUrl}${path}`, { headers: { authorization: `Bearer ${rig.platform.adminKey}` } });

type LogRow = Record<string, unknown>;

/** The rows of the request log with this trace id, as soon as there are any. */
const logOf = async (traceId: string): Promise<LogRow[]> =>
  await eventually(
    async () => {
      const { data } = (await (await get('/logs?limit=100')).json()) as { data: LogRow[] };
      return data.filter((row) => row['trace_id'] === traceId);
    },
    (rows) => rows.length > 0,
  );

const fallback = (provider: string, model: string, more: object = {}) => ({
  strategy: { mode: 'fallback' },
  targets: [
    { virtual_key: `front-${provider}`, override_params: { model }, ...more },
    { virtual_key: 'sim-openai', override_params: { model: 'sim-small' } },
  ],
});

test.each(['500', '503', '529', 'reset-early', 'error-in-stream', 'html', 'html-502'])(
  'a burst of %s is answered by the next target, streamed or not, and the log tells it',
  async (fault) => {
    for (const { provider, prefix } of wireKeys) {
      for (const stream of [false, true]) {
        const trace = `trace-${provider}-${fault}-${stream}`;
        const config = fallback(provider, `${prefix}sim-fault-${fault}`, { virtual_key: `sim-${provider}` });
        const asked = await rig.ask('any', { stream, config, headers: { 'x-gateway-trace-id': trace } });
        expect([provider, asked.status]).toEqual([provider, 200]);
        const { payloads, done } = eventsOf(asked.text);
        const choices = stream ? payloads.flatMap((payload) => payload.choices ?? []) : (asked.body.choices ?? []);
        expect([done, choices.at(-1)?.finish_reason]).toEqual([stream, 'stop']);
        expect(payloads.filter(({ error }) => error !== undefined)).toEqual([]);
        expect(asked.headers.get('x-gateway-last-used-option-index')).toBe('config.targets[1]');
        expect(asked.headers.get('x-gateway-retry-attempt-count')).toBe('0');
        expect(asked.headers.get('x-gateway-provider')).toBe('openai');
      }
    }
    // A reset before a byte of the answer, on a connection that was used before, looks like an idle one that was just
    // closed: the request goes out once more, and both are counted.
    const attempts = expect.toBeOneOf(fault === 'reset-early' ? [2, 3] : [2]) as number;
    for (const { provider } of wireKeys) {
      for (const stream of [false, true]) {
        expect(await logOf(`trace-${provider}-${fault}-${stream}`)).toMatchObject([
          { status: 200, attempts, virtual_key: 'sim-openai', last_used_option: 'config.targets[1]', stream },
        ]);
      }
    }
  },
);

test('a burst is waited out by retries where they last, and left to the next target where they do not', async () => {
  await Promise.all(
    wireKeys.map(async ({ provider, prefix }) => {
      const retry = { attempts: 1, jitter: false };
      const config = fallback(provider, `${prefix}sim-fault-503-then-ok-3`, { retry });
      const content = `burst of ${provider}`;
      const used = async () => {
        const { status, headers } = await rig.ask('any', { config, content });
        const names = ['last-used-option-index', 'retry-attempt-count', 'provider'];
        return [status, ...names.map((name) => headers.get(`x-gateway-${name}`))];
      };
      expect(await used()).toEqual([200, 'config.targets[1]', '0', 'openai']);
      expect(await used()).toEqual([200, 'config.targets[0]', '1', provider]);
      expect(await used()).toEqual([200, 'config.targets[0]', '0', provider]);
    }),
  );
});

test('a circuit opens in each format, is passed over and shown, spares other models, and closes again', async () => {
  const breaker = { cb_config: { failure_threshold: 2 } };
  let isDown = true;
  rig.intercept((reply, text) => {
    if (!isDown || !text.includes('text-down')) return false;
    reply.json(503, { error: { message: 'down' }, message: 'down' });
    return true;
  });
  for (const { provider, prefix } of wireKeys) {
    const call = (model: string, config: object = breaker) =>
      rig.ask(`@front-${provider}/${prefix}${model}`, { config });
    for (const _ of [1, 2]) expect((await call('text-down')).status).toBe(503);
    const reached = rig.arrivals.length;
    const open = await call('text-down');
    expect(open.status).toBe(503);
    expect(open.body.error).toMatchObject({ code: 'circuit_open', type: 'service_unavailable_error', param: null });
    expect(open.body.error?.message).toContain(`front-${provider}`);
    expect(Number(open.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(Number(open.headers.get('retry-after'))).toBeLessThanOrEqual(30);

    const rescued = await rig.ask('any', { config: fallback(provider, `${prefix}text-down`, breaker) });
    expect([rescued.status, rescued.headers.get('x-gateway-provider')]).toEqual([200, 'openai']);
    expect(rig.arrivals).toHaveLength(reached);
    expect((await call('text-up')).status).toBe(200);
  }
  const metrics = async () => await (await fetch(rig.platform.baseUrl.replace('/v1', '/metrics'))).text();
  const shown = async () => ((await (await get('/admin/circuits')).json()) as { data: LogRow[] }).data;
  const listed = await eventually(shown, ({ length }) => length === wireKeys.length);
  expect(new Map(listed.map(({ virtual_key: slug, state }) => [slug, state]))).toEqual(
    new Map(wireKeys.map(({ provider }) => [`front-${provider}`, 'open'])),
  );
  expect(listed.every(({ reason, failures }) => reason === 'http_503' && failures === 2)).toBe(true);
  for (const { provider } of wireKeys) {
    expect(await metrics()).toContain(`sluice_provider_circuits{provider="${provider}",state="open"} 1`);
  }

  // Half a minute later, by the database's clock and both clocks of this process.
  await rig.platform.database.db
    .updateTable('provider_circuit')
    .set({ open_until: sql<Date>`open_until - interval '31 seconds'` })
    .execute();
  const now = Date.now;
  vi.spyOn(Date, 'now').mockImplementation(() => now() + 31_000);
  vi.spyOn(steadyClock, 'now').mockImplementation(() => performance.timeOrigin + performance.now() + 31_000);
  isDown = false;
  for (const { provider, prefix } of wireKeys) {
    for (const _ of [1, 2]) {
      const { status } = await rig.ask(`@front-${provider}/${prefix}text-down`, { config: breaker });
      expect([provider, status]).toEqual([provider, 200]);
    }
    expect(await metrics()).not.toContain(`{provider="${provider}",state="open"}`);
  }
  await eventually(shown, ({ length }) => length === 0);
});
