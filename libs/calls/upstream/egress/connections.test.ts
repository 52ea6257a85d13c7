import { Readable } from 'node:stream';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { setImmediate } from 'node:timers/promises';
import type { Dispatcher } from 'undici';
import { afterEach, describe, expect, test } from 'vitest';
import { chatRequest, completion, startForwardingRig } from '#test/forwarding-rig.ts';
import { hang, startUpstream, waitUntil, type Upstream, type UpstreamScript } from '#test/upstream.ts';
import { defaultTimeouts } from '#libs/calls/timeouts.ts';
import { createEgress, type Egress } from './egress.ts';
import { parseEgressAllow } from './egress-allow.ts';
import { startExchange } from './exchange.ts';
import type { Lookup } from './name-lookup.ts';
import { createLazyFaults } from '../provider-faults.ts';

const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const lost = expect.stringMatching(/ECONNRESET|EPIPE|UND_ERR_SOCKET/);

/** Answers immediately, except requests for `/hang`, which are never answered. */
const answerOrHang: UpstreamScript = (reply, { path }) => {
  if (path !== '/hang') reply.json(200, {});
};

async function start(
  script: UpstreamScript | UpstreamScript[],
  options: { callsMax?: number; keepAliveMs?: number } = {},
): Promise<{ upstream: Upstream; egress: Egress }> {
  const upstream = await startUpstream(script);
  // Every name resolves to this machine.
  const lookup: Lookup = (_name, _options, callback) => callback(null, [{ address: '127.0.0.1', family: 4 }]);
  const egress = createEgress({ allow: parseEgressAllow('127.0.0.0/8'), lookup, ...options });
  cleanups.push(async () => {
    await egress.stop();
    await upstream.stop();
  });
  return { upstream, egress };
}

type Sent = { ended: Promise<number>; isStarted: () => boolean; isConnecting: () => boolean; abort: () => void };

function send(
  egress: Egress,
  origin: string,
  options: {
    path?: string;
    workspaceId?: string;
    body?: Readable | Buffer;
    headers?: string[];
    isRepeatable?: boolean;
  } = {},
): Sent {
  const { path = '/', workspaceId, body = null, headers = [], isRepeatable } = options;
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  promise.catch(() => {}); // Awaited later, or never.
  let controller: Pick<Dispatcher.DispatchController, 'abort'> | undefined;
  let isConnecting = false;
  let status = 0;
  const call = { origin, path, method: body === null ? 'GET' : 'POST', headers, body, workspaceId, isRepeatable };
  egress.dispatch(call, {
    onConnecting: (connecting) => {
      controller = connecting;
      isConnecting = true;
    },
    onRequestStart: (started) => {
      controller = started;
      isConnecting = false;
    },
    onResponseStart: (_controller, code) => {
      status = code;
    },
    onResponseData: () => {},
    onResponseEnd: () => resolve(status),
    onResponseError: (_controller, error) => reject(error),
  });
  return {
    ended: promise,
    isStarted: () => controller !== undefined && !isConnecting,
    isConnecting: () => isConnecting,
    abort: () => controller?.abort(new Error('left')),
  };
}

test('hosts whose calls were aborted are forgotten: another host can be called after more of them than there may be calls', async () => {
  const { upstream, egress } = await start(answerOrHang, { keepAliveMs: 50 });
  const originOf = (name: string): string => `http://${name}.example:${upstream.port}`;
  for (let wave = 0; wave < 11; wave += 1) {
    const calls = Array.from({ length: 100 }, (_, at) => send(egress, originOf(`h${wave}-${at}`), { path: '/hang' }));
    await waitUntil(() => calls.every(({ isStarted }) => isStarted()));
    for (const call of calls) call.abort();
    await Promise.allSettled(calls.map(({ ended }) => ended));
  }
  expect(await send(egress, originOf('healthy')).ended).toBe(200);
  await waitUntil(() => egress.stats().origins === 0 && egress.stats().sockets === 0);
  expect(egress.stats()).toMatchObject({ calls: 0, callsRefused: 0 });
});

describe('one workspace beside another', () => {
  test('calls that hang at a provider delay nobody else who waits for it', async () => {
    const { upstream, egress } = await start(answerOrHang);
    const hanging = Array.from({ length: 600 }, () =>
      send(egress, upstream.url.origin, { path: '/hang', workspaceId: 'ws_a' }),
    );
    await waitUntil(() => hanging.every(({ isStarted }) => isStarted()));
    expect(await send(egress, upstream.url.origin, { workspaceId: 'ws_b' }).ended).toBe(200);
    for (const call of hanging) call.abort();
    await waitUntil(() => egress.stats().calls === 0);
  });

  test('nobody has all connections: a workspace beyond its share is refused, and another one is served', async () => {
    const { upstream, egress } = await start(answerOrHang, { callsMax: 8 });
    const hanging = Array.from({ length: 6 }, (_, at) =>
      send(egress, `http://h${at}.example:${upstream.port}`, { path: '/hang', workspaceId: 'ws_a' }),
    );
    await waitUntil(() => hanging.every(({ isStarted }) => isStarted()));
    await expect(send(egress, upstream.url.origin, { workspaceId: 'ws_a' }).ended).rejects.toMatchObject({
      kind: 'rate_limited',
      code: 'too_many_calls',
      retryAfterMs: 1_000,
      message: expect.stringContaining('has 6 calls'),
    });
    expect(await send(egress, upstream.url.origin, { workspaceId: 'ws_b' }).ended).toBe(200);
    hanging[0]?.abort();
    await waitUntil(() => egress.stats().calls === 5);
    expect(await send(egress, upstream.url.origin, { workspaceId: 'ws_a' }).ended).toBe(200);
    expect(egress.stats().callsRefused).toBe(1);
  });

  test('a call whose caller leaves while its socket is being opened releases its slot at once', async () => {
    const egress = createEgress({ allow: parseEgressAllow('127.0.0.0/8'), lookup: () => {}, callsMax: 8 });
    cleanups.push(() => egress.stop());
    for (let wave = 0; wave < 3; wave += 1) {
      const calls = Array.from({ length: 6 }, (_, at) => send(egress, `http://h${at}.example`));
      await waitUntil(() => calls.every(({ isConnecting }) => isConnecting()));
      for (const call of calls) call.abort();
      for (const call of calls) await expect(call.ended).rejects.toThrow('left');
      expect(egress.stats()).toMatchObject({ calls: 0, origins: 0, callsRefused: 0 });
    }
  });

  test.each(['leaves', 'has waited long enough'])('so does one whose caller %s', async (why) => {
    const egress = createEgress({ allow: parseEgressAllow('127.0.0.0/8'), lookup: () => {} });
    cleanups.push(() => egress.stop());
    const left = new CallAbort();
    const failure = new Promise<Error>((resolve) => {
      const connectMs = why === 'leaves' ? 60_000 : 20;
      startExchange(
        egress,
        { origin: 'http://h.example', path: '/', method: 'GET', headers: [], body: null },
        {
          timeouts: { ...defaultTimeouts, connectMs },
          signal: left,
          faults: createLazyFaults('h', []),
          workspaceId: 'ws',
        },
        { head: () => {}, data: () => {}, end: () => {}, fail: resolve },
      );
    });
    if (why === 'leaves') {
      await waitUntil(() => egress.stats().calls === 1);
      left.abort(new Error('left'));
    }
    expect(await failure).toMatchObject({ code: why === 'leaves' ? 'call_aborted' : 'upstream_connect_timeout' });
    await waitUntil(() => egress.stats().calls === 0);
  });

  test('a connection that was never opened holds no slot', async () => {
    const { upstream, egress } = await start(answerOrHang, { callsMax: 4 });
    for (let at = 0; at < 10; at += 1) {
      const bad = send(egress, upstream.url.origin, { headers: ['bad name', 'x'] });
      await expect(bad.ended).rejects.toMatchObject({ code: 'UND_ERR_INVALID_ARG' });
      await expect(send(egress, 'http://127.0.0.1:1').ended).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    }
    await waitUntil(() => egress.stats().calls === 0 && egress.stats().origins === 0);
    expect(await send(egress, upstream.url.origin).ended).toBe(200);
  });
});

test('an answer that is paused at its head continues when it is resumed, however long that took', async () => {
  const body = Buffer.alloc(2_000_000, 'x');
  const { upstream, egress } = await start((reply) => reply.respond(200, body));
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  let bytes = 0;
  egress.dispatch(
    { origin: upstream.url.origin, path: '/', method: 'GET', headers: [] },
    {
      onRequestStart: () => {},
      onResponseStart: (controller) => {
        controller.pause();
        setTimeout(() => controller.resume(), 2_500);
      },
      onResponseData: (_controller, chunk) => {
        bytes += chunk.length;
      },
      onResponseEnd: () => resolve(0),
      onResponseError: (_controller, error) => reject(error),
    },
  );
  // If the pause counted as reading, the rest of the answer would be delayed for ten times as long.
  const late = setTimeout(() => reject(new Error('the rest of the answer was held back')), 10_000);
  await promise.finally(() => clearTimeout(late));
  expect(bytes).toBe(body.length);
});

describe('a provider that closes an idle socket just as a request is sent', () => {
  /** Answers the first request of a connection, and closes the connection at its second. */
  const closeSecond =
    (close: 'cut' | 'reset'): UpstreamScript =>
    (reply, { connection }) => {
      if (seen.has(connection)) return reply[close]();
      seen.add(connection);
      reply.json(200, completion);
    };
  const seen = new Set<number>();
  afterEach(() => seen.clear());

  test.each(['cut', 'reset'] as const)(
    'does not fail a call, which is sent again on a new socket (%s)',
    async (close) => {
      const { upstream, egress } = await start(closeSecond(close));
      for (let at = 0; at < 20; at += 1) {
        const body = Buffer.from('{}');
        expect(await send(egress, upstream.url.origin, { body, isRepeatable: true }).ended).toBe(200);
        await setImmediate();
      }
      expect(egress.stats()).toMatchObject({ callsResent: 19, calls: 0 });
    },
  );

  test('gets no second request that would create something twice', async () => {
    const { upstream, egress } = await start(closeSecond('reset'));
    const body = Buffer.from('{}');
    expect(await send(egress, upstream.url.origin, { body }).ended).toBe(200);
    await setImmediate();
    await expect(send(egress, upstream.url.origin, { body }).ended).rejects.toMatchObject({ code: lost });
    expect(egress.stats()).toMatchObject({ callsResent: 0, calls: 0 });
  });

  test('leaves both attempts in the log', async () => {
    const rig = await startForwardingRig(closeSecond('reset'));
    cleanups.push(rig.stop);
    await rig.forwarder.forward(chatRequest(), rig.target);
    await setImmediate();
    const answer = await rig.forwarder.forward(chatRequest(), rig.target);
    expect(answer.attempts).toMatchObject([
      { status: null, errorCode: 'upstream_connection_lost' },
      { status: 200, errorCode: null },
    ]);
  });

  test.each<[string, UpstreamScript[], Readable | undefined]>([
    ['the first request of its socket', [(reply) => reply.reset()], undefined],
    ['one that was being answered', [answerOrHang, (reply) => void reply.raw('HTTP/1.1 2').then(reply.cut)], undefined],
    ['one whose body is a stream', [answerOrHang, (reply) => reply.reset()], Readable.from([Buffer.from('x')])],
  ])('%s is not sent again', async (_what, scripts, body) => {
    const { upstream, egress } = await start(scripts);
    if (scripts.length > 1) await send(egress, upstream.url.origin).ended;
    await setImmediate();
    const call = send(egress, upstream.url.origin, body && { body, headers: ['content-length', '1'] });
    await expect(call.ended).rejects.toMatchObject({ code: lost });
    expect(upstream.requests).toHaveLength(scripts.length);
    expect(egress.stats()).toMatchObject({ callsResent: 0, calls: 0 });
  });

  test('fails a call when it does so twice', async () => {
    const { upstream, egress } = await start([answerOrHang, (reply) => reply.reset()]);
    await send(egress, upstream.url.origin).ended;
    await setImmediate();
    await expect(send(egress, upstream.url.origin).ended).rejects.toMatchObject({ code: lost });
    expect(upstream.requests).toHaveLength(3);
  });
});

test('running calls end when the egress stops, and no new ones begin', async () => {
  const { upstream, egress } = await start(hang);
  const call = send(egress, upstream.url.origin);
  await waitUntil(call.isStarted);
  await egress.stop();
  await expect(call.ended).rejects.toMatchObject({ code: 'UND_ERR_DESTROYED' });
  await expect(send(egress, upstream.url.origin).ended).rejects.toMatchObject({ code: 'UND_ERR_DESTROYED' });
});
