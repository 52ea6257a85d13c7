import type { LookupAddress } from 'node:dns';
import { setImmediate } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import { forbiddenSpellings } from '#test/forbidden-spellings.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { createEgress, type Egress } from './egress.ts';
import { parseEgressAllow } from './egress-allow.ts';
import { isForbiddenAddress } from './forbidden-addresses.ts';
import type { Lookup } from './name-lookup.ts';

const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

async function upstream(): Promise<Upstream> {
  const started = await startUpstream((reply) => reply.json(200, {}));
  cleanups.push(() => started.stop());
  return started;
}

function egress(options: { allow?: string; lookup?: Lookup } = {}): Egress {
  const made = createEgress({
    allow: parseEgressAllow(options.allow ?? ''),
    ...(options.lookup ? { lookup: options.lookup } : {}),
    connectTimeoutMs: 300,
  });
  cleanups.push(() => made.stop());
  return made;
}

/** GETs a URL like any caller of the egress: checked, then dispatched. */
function get(from: Egress, url: URL, options: { checked?: boolean } = {}): Promise<number> {
  return new Promise((resolve, reject) => {
    if (options.checked !== false) from.check(url);
    let status = 0;
    from.dispatch(
      { origin: url.origin, path: url.pathname, method: 'GET', headers: [] },
      {
        onRequestStart: () => {},
        onResponseData: () => {},
        onResponseStart: (_controller, code) => {
          status = code;
        },
        onResponseEnd: () => resolve(status),
        onResponseError: (_controller, error) => reject(error),
      },
    );
  });
}

const refused = expect.objectContaining({ kind: 'invalid_request', code: 'destination_not_allowed' });

/** Opens a TLS connection, which no test server accepts. */
const openTls = (from: Egress, url: string): Promise<unknown> =>
  from.connectTls(new URL(url), 'ws_1', new AbortController().signal);

const noOrigin = expect.stringContaining('ERR_INVALID');

/** A name server that gives each name these answers in turn, and then repeats the last one. */
function answering(...answers: string[][]): Lookup {
  return (_hostname, _options, callback) => {
    const addresses = (answers.length > 1 ? answers.shift() : answers[0]) ?? [];
    queueMicrotask(() =>
      callback(
        null,
        addresses.map((address): LookupAddress => ({ address, family: address.includes(':') ? 6 : 4 })),
      ),
    );
  };
}

describe('forbidden destinations', () => {
  test('get no TLS connection of another protocol, by address or by name', async () => {
    const listener = await upstream();
    await expect(openTls(egress(), `https://127.0.0.1:${listener.port}`)).rejects.toEqual(refused);
    await expect(openTls(egress(), `https://[::1]:${listener.port}`)).rejects.toEqual(refused);
    const out = egress({ lookup: answering(['127.0.0.1']) });
    await expect(openTls(out, `https://siem.test:${listener.port}`)).rejects.toEqual(refused);
    expect(listener.connections().accepted).toBe(0);
  });

  test.each(forbiddenSpellings)('%j gets no connection, checked beforehand or not', async (spelling) => {
    const listener = await upstream();
    const out = egress();
    const url = new URL(spelling.replace('PORT', String(listener.port)));
    expect(() => out.check(url)).toThrow(refused);
    // Connecting to a valid origin is refused as well. undici does not accept the other origins.
    await expect(get(out, url, { checked: false })).rejects.toMatchObject({
      code: url.protocol.startsWith('http') ? 'destination_not_allowed' : noOrigin,
    });
    expect(listener.connections().accepted).toBe(0);
    expect(out.stats()).toMatchObject({ sockets: 0, connectionsOpened: 0 });
  });

  test.each([
    'http://[fe80::1%25lo]/',
    'http://127.0.0.1:99999/',
    'http://1.2.3.4.5/',
    'http://256.0.0.1/',
    'http:///',
  ])('%s is no URL at all', (text) => {
    expect(URL.canParse(text)).toBe(false);
  });

  test.each(['localhost', 'LOCALHOST.', 'app.localhost', '127.0.0.1.nip.io', 'metadata.google.internal'])(
    'a name (%s) that resolves to a private address gets no connection',
    async (name) => {
      const listener = await upstream();
      const out = egress({ lookup: answering(['127.0.0.1']) });
      await expect(get(out, new URL(`http://${name}:${listener.port}/`))).rejects.toEqual(refused);
      expect(listener.connections().accepted).toBe(0);
    },
  );

  test('a real name server that returns 127.0.0.1 for localhost is refused too', async () => {
    const listener = await upstream();
    await expect(get(egress(), new URL(`http://localhost:${listener.port}/`))).rejects.toEqual(refused);
    expect(listener.connections().accepted).toBe(0);
  });

  test.each([
    [['203.0.113.7', '127.0.0.1']],
    [['127.0.0.1', '203.0.113.7']],
    [['2606:4700::1111', '127.0.0.1']],
    [['203.0.113.7', '::1']],
    [['203.0.113.7', '::ffff:127.0.0.1']],
  ])('a name with one private address among its addresses (%j) is refused whole', async (addresses) => {
    const listener = await upstream();
    const out = egress({ lookup: answering(addresses) });
    await expect(get(out, new URL(`http://mixed.example:${listener.port}/`))).rejects.toEqual(refused);
    expect(listener.connections().accepted).toBe(0);
  });

  test('a name whose address becomes private after its first answer is refused at the next connection', async () => {
    const listener = await upstream();
    // 127.0.0.2 represents the public address: the operator allowed it, but not 127.0.0.1.
    const out = egress({ allow: '127.0.0.2/32', lookup: answering(['127.0.0.2'], ['127.0.0.1']) });
    const url = new URL(`http://rebinding.example:${listener.port}/`);
    const before = listener.connections().accepted;
    // No server listens on 127.0.0.2, so the error shows that it was called.
    await expect(get(out, url)).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    await expect(get(out, url)).rejects.toEqual(refused);
    expect(listener.connections().accepted).toBe(before);
  });

  test('a public address is allowed', () => {
    const open = ['1.1.1.1', '8.8.8.8', '172.32.0.1', '100.128.0.1', '2606:4700::1111', '::ffff:8.8.8.8'];
    expect(open.filter(isForbiddenAddress)).toEqual([]);
    const noAddresses = ['', 'localhost', '1.2.3'];
    expect(noAddresses.filter(isForbiddenAddress)).toEqual(noAddresses);
  });
});

describe('exceptions of the operator', () => {
  test('a host and port named literally is reached, on that port only', async () => {
    const [named, other] = [await upstream(), await upstream()];
    const out = egress({ allow: `127.0.0.1:${named.port}` });
    await expect(get(out, named.url)).resolves.toBe(200);
    await expect(get(out, other.url)).rejects.toEqual(refused);
    await expect(get(out, new URL(`http://localhost:${named.port}/`))).rejects.toEqual(refused);
    expect(other.connections().accepted).toBe(0);
    expect(named.connections().accepted).toBe(1);
  });

  test('a host name named literally is reached whatever it resolves to', async () => {
    const listener = await upstream();
    const out = egress({ allow: `LocalHost:${listener.port}`, lookup: answering(['127.0.0.1']) });
    await expect(get(out, new URL(`http://localhost:${listener.port}/v1`))).resolves.toBe(200);
  });

  test('a network is compared with the address, and with the port if it has one', async () => {
    const listener = await upstream();
    const name = new URL(`http://vllm.example:${listener.port}/`);
    const lookup = answering(['127.0.0.1']);
    await expect(get(egress({ allow: '10.0.0.0/8 127.0.0.0/8', lookup }), name)).resolves.toBe(200);
    await expect(get(egress({ allow: `127.0.0.0/8:${listener.port}`, lookup }), listener.url)).resolves.toBe(200);
    await expect(get(egress({ allow: '127.0.0.0/8:1', lookup }), name)).rejects.toEqual(refused);
    await expect(get(egress({ allow: '127.0.0.1/32', lookup: answering(['127.0.0.2']) }), name)).rejects.toEqual(
      refused,
    );
  });

  test('IPv6 hosts and networks are written in brackets', () => {
    const allow = parseEgressAllow('[0:0::1]:8001, fd00::/8 [fd01::/16]:443');
    expect(allow.allowsHost('[::1]', 8_001)).toBe(true);
    expect(allow.allowsAddress('fd00::5', 80)).toBe(true);
    expect(parseEgressAllow('[fd01::/16]:443').allowsAddress('fd01::5', 80)).toBe(false);
    expect(parseEgressAllow('127.0.0.0/8').allowsAddress('::ffff:127.0.0.1', 80)).toBe(true);
  });

  test.each([
    'localhost',
    '10.0.0.1',
    '10.0.0.0/33',
    '::1:80',
    'a:0',
    'a:65536',
    'http://a:80',
    '10.0.0.0/8:x',
    '*:80@',
  ])('%s is refused with the two forms that would be right', (entry) => {
    expect(() => parseEgressAllow(`10.0.0.0/8,${entry}`)).toThrow(/Write host:port/);
  });
});

test('a name server that never answers ends in a connect timeout', async () => {
  const out = egress({ lookup: () => {} });
  await expect(get(out, new URL('http://silent.example/'))).rejects.toMatchObject({ code: 'UND_ERR_CONNECT_TIMEOUT' });
});

test('sockets are kept for the next call and counted until they close', async () => {
  const listener = await upstream();
  const out = egress({ allow: '127.0.0.0/8' });
  await get(out, listener.url);
  await setImmediate(); // undici releases a socket one tick after the end of the answer.
  await get(out, listener.url);
  expect(listener.connections().accepted).toBe(1);
  expect(out.stats()).toMatchObject({ sockets: 1, connectionsOpened: 1 });
  await out.stop();
  await listener.until(() => listener.connections().open === 0 && out.stats().sockets === 0);
});
