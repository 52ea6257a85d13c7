import { Writable } from 'node:stream';
import { expect, test } from 'vitest';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { textSecret, type FetchedSecret } from './fetched-secret.ts';
import { createSecretCache } from './secret-cache.ts';
import { SecretError, type SecretFault } from './secret-error.ts';
import type { LiveSecretReference } from './secret-manager.ts';

const reference = (more: Partial<LiveSecretReference> = {}): LiveSecretReference => ({
  id: 'sref_1',
  slug: 'openai',
  ownerId: 'org_default',
  managerType: 'hashicorp_vault',
  auth: {},
  secrets: {},
  path: 'secret/openai',
  allowedKeys: [],
  key: null,
  workspaces: null,
  ...more,
});

/** A cache with a lifetime of a minute, and ten more while its manager fails, whose fetches are answered by `next`. */
function createRig() {
  let atMs = 0;
  let fetched = 0;
  let logged = '';
  let next: () => string | Promise<string> = () => 'sk-1';
  const sink = new Writable({
    write(chunk: Buffer, _encoding, done) {
      logged += chunk.toString();
      done();
    },
  });
  const cache = createSecretCache({
    async fetch({ slug }) {
      fetched += 1;
      const value = await next();
      if (value.startsWith('sk-')) return textSecret(slug, value);
      throw new SecretError(value as SecretFault, slug, 'fails');
    },
    logger: createLogger({ name: 'test', level: 'trace' }, sink),
    ttlMs: 60_000,
    staleMs: 600_000,
    now: () => atMs,
    random: () => 0.5,
  });
  const valueOf = async (secret: FetchedSecret | Promise<FetchedSecret>): Promise<string> =>
    (await secret).pick(null, 'string').reveal();
  return {
    cache,
    pass: (ms: number) => {
      atMs += ms;
    },
    answer: (made: typeof next) => {
      next = made;
    },
    fetched: () => fetched,
    logged: () => logged,
    value: (of: LiveSecretReference) => valueOf((async () => cache.read(of))()),
    /** Lets a fetch in the background end. */
    settle: () => new Promise((resolve) => setImmediate(resolve)),
  };
}

test('calls that ask at the same time share one fetch, and later ones wait for nothing', async () => {
  const rig = createRig();
  const one = reference();
  const { promise, resolve } = Promise.withResolvers<string>();
  rig.answer(() => promise);
  const asked = [rig.value(one), rig.value(one), rig.value(one)];
  resolve('sk-1');
  expect(await Promise.all(asked)).toEqual(['sk-1', 'sk-1', 'sk-1']);
  expect(rig.cache.read(one)).not.toBeInstanceOf(Promise);
  expect(rig.fetched()).toBe(1);
});

test('a value that is in use is fetched again before its time ends, while calls go on with it', async () => {
  const rig = createRig();
  const one = reference();
  await rig.value(one);
  rig.pass(55_000);
  rig.answer(() => 'sk-2');
  expect(await rig.value(one)).toBe('sk-1');
  await rig.settle();
  expect(await rig.value(one)).toBe('sk-2');
  expect(rig.fetched()).toBe(2);
});

test('a value that nobody used for long is fetched before it is used', async () => {
  const rig = createRig();
  const one = reference();
  await rig.value(one);
  rig.pass(300_000);
  rig.answer(() => 'sk-2');
  expect(await rig.value(one)).toBe('sk-2');
});

test.each(['unavailable', 'denied'] as const)(
  'while the manager is %s the last value is used for a bounded time, and the manager is asked ever more rarely',
  async (fault) => {
    const rig = createRig();
    const one = reference();
    await rig.value(one);
    rig.pass(60_000);
    rig.answer(() => fault);
    expect(await rig.value(one)).toBe('sk-1');
    const before = rig.fetched();
    for (let second = 0; second < 590; second += 1) {
      rig.pass(1_000);
      expect(await rig.value(one)).toBe('sk-1');
      await rig.settle();
    }
    expect(rig.fetched() - before).toBeLessThan(40);
    rig.pass(11_000);
    await expect(rig.value(one)).rejects.toMatchObject({ kind: 'unavailable', fault });
    rig.pass(30_000);
    rig.answer(() => 'sk-2');
    expect(await rig.value(one)).toBe('sk-2');
  },
);

test.each(['not_found', 'malformed'] as const)('a value that is %s is not used any more', async (fault) => {
  const rig = createRig();
  const one = reference();
  await rig.value(one);
  rig.pass(60_000);
  rig.answer(() => fault);
  await expect(rig.value(one)).rejects.toMatchObject({ kind: 'dependency_failed', fault });
  expect(rig.cache.stats()).toEqual({
    cached: 0,
    fetches: { ok: 1, unavailable: 0, denied: 0, not_found: 0, malformed: 0, [fault]: 1 },
  });
});

test('a manager that fails is not asked for every call', async () => {
  const rig = createRig();
  const one = reference();
  rig.answer(() => 'unavailable');
  for (let call = 0; call < 100; call += 1) await expect(rig.value(one)).rejects.toThrow("'openai'");
  expect(rig.fetched()).toBe(1);
});

test('a changed reference is fetched from where it says now', async () => {
  const rig = createRig();
  await rig.value(reference());
  rig.answer(() => 'sk-2');
  expect(await rig.value(reference({ path: 'secret/other' }))).toBe('sk-2');
});

test('a file is read again after two seconds', async () => {
  const rig = createRig();
  const file = reference({ managerType: 'file' });
  await rig.value(file);
  rig.pass(2_000);
  rig.answer(() => 'sk-2');
  expect(await rig.value(file)).toBe('sk-2');
});

test('a refused value is fetched again once for all calls that used it, and not again for a while', async () => {
  const rig = createRig();
  const one = reference();
  const used = await rig.cache.read(one);
  rig.answer(() => 'sk-2');
  const renewed = await Promise.all([rig.cache.renew(one, used), rig.cache.renew(one, used)]);
  expect(renewed.map((secret) => secret?.pick(null, 'string').reveal())).toEqual(['sk-2', 'sk-2']);
  expect(rig.fetched()).toBe(2);
  const [newest] = renewed;
  if (!newest) throw new Error('nothing was renewed');
  // A call that began with the older value gets the newer one without a fetch.
  expect(await rig.cache.renew(one, used)).toBe(newest);
  expect(await rig.cache.renew(one, newest)).toBeNull();
  expect(rig.fetched()).toBe(2);
  rig.pass(15_000);
  rig.answer(() => 'unavailable');
  expect(await rig.cache.renew(one, newest)).toBeNull();
  expect(await rig.value(one)).toBe('sk-2');
});

test('secrets that are large push out those that were used least recently', async () => {
  const rig = createRig();
  rig.answer(() => `sk-${'x'.repeat(60_000)}`);
  for (let index = 0; index < 1_500; index += 1) await rig.value(reference({ id: `sref_${index}` }));
  expect(rig.cache.stats().cached).toBeLessThan(1_200);
  expect(rig.cache.stats().cached).toBeGreaterThan(900);
});

test('a value that may not be used any more is forgotten', async () => {
  const rig = createRig();
  await rig.value(reference());
  rig.pass(659_000);
  rig.cache.sweep();
  expect(rig.cache.stats().cached).toBe(1);
  rig.pass(1_000);
  rig.cache.sweep();
  expect(rig.cache.stats().cached).toBe(0);
});

test('one workspace fetches a bounded number of secrets at once, and others are not held up by it', async () => {
  const rig = createRig();
  const { promise, resolve } = Promise.withResolvers<string>();
  rig.answer(() => promise);
  const ofWorkspace = (index: number) => reference({ id: `sref_${index}`, ownerId: 'ws_a' });
  const asked = Array.from({ length: 128 }, (_value, index) => rig.value(ofWorkspace(index)));
  const beyond = ofWorkspace(128);
  await expect(rig.value(beyond)).rejects.toMatchObject({ fault: 'unavailable' });
  const other = rig.value(reference({ ownerId: 'ws_b' }));
  resolve('sk-1');
  expect(await Promise.all([...asked, other])).toHaveLength(129);
  expect(await rig.value(beyond)).toBe('sk-1');
});

test('the log names the reference once for an outage, and never a value', async () => {
  const rig = createRig();
  const one = reference();
  rig.answer(() => 'sk-canary');
  await rig.value(one);
  rig.answer(() => 'unavailable');
  for (let round = 0; round < 5; round += 1) {
    rig.pass(60_000);
    await rig.value(one);
    await rig.settle();
  }
  rig.answer(() => 'sk-canary-2');
  rig.pass(60_000);
  await rig.value(one);
  await rig.settle();
  const lines = rig.logged().trim().split('\n');
  expect(lines).toHaveLength(2);
  expect(lines[0]).toContain('"slug":"openai"');
  expect(rig.logged()).not.toContain('sk-canary');
});
