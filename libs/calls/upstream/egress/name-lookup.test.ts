import type { LookupAddress } from 'node:dns';
import { readFile } from 'node:fs/promises';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { startNameServer, type NameRecord, type NameServer } from '#test/name-server.ts';
import { startUpstream, waitUntil } from '#test/upstream.ts';
import { createEgress } from './egress.ts';
import { parseEgressAllow } from './egress-allow.ts';
import type { NameFiles } from '../name-files.ts';
import { createNameLookup, type Lookup, type LookupRequest } from './name-lookup.ts';

const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const noFiles: NameFiles = { addressesOf: () => undefined, candidatesOf: (name) => [name], version: () => 1 };

type Started = { server: NameServer; lookup: Lookup; advance: (ms: number) => void };

async function start(
  records: Record<string, NameRecord>,
  options: Parameters<typeof createNameLookup>[0] = {},
): Promise<Started> {
  const server = await startNameServer(records);
  cleanups.push(server.stop);
  let now = 0;
  const lookup = createNameLookup({
    files: noFiles,
    servers: [server.address],
    timeoutMs: 250,
    now: () => now,
    ...options,
  });
  return { server, lookup, advance: (ms) => void (now += ms) };
}

function find(lookup: Lookup, name: string, request: Partial<LookupRequest> = {}): Promise<LookupAddress[]> {
  return new Promise((resolve, reject) => {
    lookup(name, { ...request, all: true }, (error, addresses) => {
      if (error) reject(error);
      else resolve(addresses);
    });
  });
}

const v4 = (...addresses: string[]): LookupAddress[] => addresses.map((address) => ({ address, family: 4 }));

describe('a name', () => {
  test('has all the addresses that its name server returns', async () => {
    const { lookup } = await start({ 'api.example': { addresses: ['192.0.2.1', '192.0.2.2'] } });
    expect(await find(lookup, 'API.example')).toEqual(v4('192.0.2.1', '192.0.2.2'));
  });

  test('that does not exist is an error, and so is one whose name server fails or never answers', async () => {
    const { lookup } = await start({ 'broken.example': 'servfail', 'silent.example': 'hang' });
    await expect(find(lookup, 'none.example')).rejects.toMatchObject({ code: 'ENOTFOUND' });
    await expect(find(lookup, 'broken.example')).rejects.toMatchObject({ code: 'ESERVFAIL' });
    await expect(find(lookup, 'silent.example')).rejects.toMatchObject({ code: 'ETIMEOUT' });
  });

  test('is queried once for all who need it at the same time, and again after its time to live', async () => {
    const { server, lookup, advance } = await start({ 'api.example': { addresses: ['192.0.2.1'], ttl: 10 } });
    await Promise.all([find(lookup, 'api.example'), find(lookup, 'api.example')]);
    advance(9_999);
    await find(lookup, 'api.example');
    expect(server.questions()).toEqual(['api.example']);
    server.records.set('api.example', { addresses: ['192.0.2.9'] });
    advance(1);
    expect(await find(lookup, 'api.example')).toEqual(v4('192.0.2.9'));
  });

  test.each([
    ['none is kept for a second', 0, 1_000],
    ['a day is kept for half a minute', 86_400, 30_000],
  ])('whose time to live is %s', async (_what, ttl, keptMs) => {
    const { server, lookup, advance } = await start({ 'api.example': { addresses: ['192.0.2.1'], ttl } });
    await find(lookup, 'api.example');
    advance(keptMs - 1);
    await find(lookup, 'api.example');
    expect(server.questions()).toHaveLength(1);
    advance(1);
    await find(lookup, 'api.example');
    expect(server.questions()).toHaveLength(2);
  });

  test('that failed is not queried again within a second', async () => {
    const { server, lookup, advance } = await start({});
    await expect(find(lookup, 'new.example')).rejects.toMatchObject({ code: 'ENOTFOUND' });
    server.records.set('new.example', { addresses: ['192.0.2.1'] });
    await expect(find(lookup, 'new.example')).rejects.toMatchObject({ code: 'ENOTFOUND' });
    advance(1_000);
    expect(await find(lookup, 'new.example')).toEqual(v4('192.0.2.1'));
  });

  test('of this machine is not queried at all', async () => {
    const { server, lookup } = await start({ localhost: { addresses: ['192.0.2.1'] } });
    for (const name of ['localhost', 'app.localhost', 'LOCALHOST.']) {
      expect(await find(lookup, name)).toContainEqual({ address: '127.0.0.1', family: 4 });
    }
    expect(server.questions()).toEqual([]);
  });
});

describe('the files of the machine', () => {
  test('a line of the hosts file takes precedence over any name server', async () => {
    const files = { ...noFiles, addressesOf: (name: string) => (name === 'db' ? v4('10.0.0.7') : undefined) };
    const { server, lookup } = await start({ db: { addresses: ['192.0.2.1'] } }, { files });
    expect(await find(lookup, 'DB')).toEqual(v4('10.0.0.7'));
    expect(server.questions()).toEqual([]);
  });

  test('the names that a short one may stand for are queried in turn', async () => {
    const files = { ...noFiles, candidatesOf: (name: string) => [`${name}.ns.cluster`, `${name}.cluster`, name] };
    const { server, lookup } = await start({ 'vllm.cluster': { addresses: ['10.0.0.8'] } }, { files });
    expect(await find(lookup, 'vllm')).toEqual(v4('10.0.0.8'));
    expect(server.questions()).toEqual(['vllm.ns.cluster', 'vllm.cluster']);
  });

  test('name servers are read again when resolv.conf has changed', async () => {
    const version = vi.fn(() => 1);
    const { server, lookup } = await start(
      { 'a.example': { addresses: ['192.0.2.1'] } },
      { files: { ...noFiles, version } },
    );
    await find(lookup, 'a.example');
    version.mockReturnValue(2);
    server.records.set('b.example', { addresses: ['192.0.2.2'] });
    expect(await find(lookup, 'b.example')).toEqual(v4('192.0.2.2'));
  });

  test("the system's resolver is asked for names of the operator that no name server knows, one at a time", async () => {
    const asked: string[] = [];
    const answer = Promise.withResolvers<LookupAddress[]>();
    const systemLookup = (name: string): Promise<LookupAddress[]> => {
      asked.push(name);
      return name === 'a.local' ? answer.promise : Promise.resolve(v4('10.0.0.2'));
    };
    const { lookup } = await start({ 'known.local': { addresses: ['192.0.2.1'] } }, { systemLookup });
    await expect(find(lookup, 'a.local')).rejects.toMatchObject({ code: 'ENOTFOUND' });
    expect(await find(lookup, 'known.local', { isOperators: true })).toEqual(v4('192.0.2.1'));
    const found = ['a.local', 'b.local'].map((name) => find(lookup, name, { isOperators: true }));
    await waitUntil(() => asked.length > 0);
    expect(asked).toEqual(['a.local']);
    answer.resolve(v4('10.0.0.1'));
    expect(await Promise.all(found)).toEqual([v4('10.0.0.1'), v4('10.0.0.2')]);
  });
});

describe('name servers that never answer', () => {
  const hanging = (count: number): Record<string, NameRecord> =>
    Object.fromEntries(Array.from({ length: count }, (_, at) => [`h${at}.example`, 'hang'] as const));

  test('delay no other name, no connection and no file', async () => {
    const upstream = await startUpstream((reply) => reply.json(200, {}));
    cleanups.push(upstream.stop);
    const { server, lookup } = await start(
      { ...hanging(40), 'healthy.example': { addresses: ['127.0.0.1'] } },
      { timeoutMs: 60_000 },
    );
    const egress = createEgress({ allow: parseEgressAllow('127.0.0.0/8'), lookup });
    cleanups.push(egress.stop);
    const call = (origin: string): Promise<number> => {
      const { promise, resolve, reject } = Promise.withResolvers<number>();
      egress.dispatch(
        { origin, path: '/', method: 'GET', headers: [], workspaceId: 'ws_a' },
        {
          onRequestStart: () => {},
          onResponseStart: (_controller, status) => resolve(status),
          onResponseData: () => {},
          onResponseEnd: () => {},
          onResponseError: (_controller, error) => reject(error),
        },
      );
      return promise;
    };
    const ended = vi.fn();
    for (let at = 0; at < 40; at += 1) void call(`http://h${at}.example:${upstream.port}`).catch(ended);
    await waitUntil(() => server.questions().length >= 40);
    await readFile('package.json');
    expect(await call(`http://healthy.example:${upstream.port}`)).toBe(200);
    expect(ended).not.toHaveBeenCalled();
  });

  test('leave other workspaces their share of the lookups', async () => {
    const records = { ...hanging(7), 'healthy.example': { addresses: ['192.0.2.1'] } };
    const { server, lookup } = await start(records, { lookupsMax: 8, timeoutMs: 60_000 });
    // Its name server is stopped at the end.
    for (let at = 0; at < 6; at += 1) void find(lookup, `h${at}.example`, { workspaceId: 'ws_a' }).catch(() => {});
    await waitUntil(() => server.questions().length >= 6);
    await expect(find(lookup, 'h6.example', { workspaceId: 'ws_a' })).rejects.toMatchObject({
      kind: 'rate_limited',
      code: 'too_many_calls',
    });
    expect(await find(lookup, 'healthy.example', { workspaceId: 'ws_b' })).toEqual(v4('192.0.2.1'));
  });

  test('give their share back when the lookup is over', async () => {
    const { lookup } = await start(
      { ...hanging(4), 'healthy.example': { addresses: ['192.0.2.1'] } },
      { lookupsMax: 4 },
    );
    await Promise.allSettled(Array.from({ length: 4 }, (_, at) => find(lookup, `h${at}.example`)));
    expect(await find(lookup, 'healthy.example')).toEqual(v4('192.0.2.1'));
  });
});
