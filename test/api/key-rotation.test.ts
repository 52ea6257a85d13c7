import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkMasterKeys, countSecrets, parseMasterKeys } from '#libs/secrets/master-key.ts';
import { rewrapSecrets } from '#libs/secrets/rewrap-secrets.ts';
import { createSecrets, type Secrets } from '#libs/secrets/secrets.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { eventually } from '#test/eventually.ts';
import { startApp } from '../integration/start/app-process.ts';
import { run, standaloneEnvironment } from '../integration/standalone/npm-start.ts';
import { startScriptedPlatform, type ScriptedPlatform } from './scripted-provider.ts';
import { createWorkspace } from './second-workspace.ts';

// The master key is replaced while calls are served, and a lost admin key is made up for, on the server's command line.

const newKey = (): string => randomBytes(32).toString('base64');
const [old, next] = [newKey(), newKey()];
const idOf = (key: string): string => parseMasterKeys(key)[0].id;
const slugs = Array.from({ length: 30 }, (_value, index) => `rotating-${index}`);
const credentialOf = (slug: string): string => `sk-of-${slug}-0123456789`;

let scripted: ScriptedPlatform;
beforeAll(async () => {
  // The first step of a rotation: every process knows the new key before any of them uses it.
  scripted = await startScriptedPlatform({ SLUICE_MASTER_KEY: `${old},${next}` });
  scripted.upstream.script((reply) => reply.json(200, { object: 'chat.completion', choices: [] }));
  for (const slug of slugs) await store(scripted.platform.baseUrl, slug);
});
afterAll(() => scripted.stop());

async function send(baseUrl: string, method: string, route: string, body?: object, key?: string): Promise<Response> {
  return await fetch(`${baseUrl}${route}`, {
    method,
    headers: { 'x-gateway-api-key': key ?? scripted.platform.adminKey, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
}

async function store(baseUrl: string, slug: string): Promise<void> {
  const key = { name: slug, slug, provider: 'openai-compatible', key: credentialOf(slug) };
  const made = await send(baseUrl, 'POST', '/virtual-keys', { ...key, custom_host: scripted.upstream.url.href });
  if (made.status !== 200) throw new Error(await made.text());
}

async function ask(baseUrl: string, slug: string): Promise<number> {
  const body = { model: `@${slug}/m`, messages: [{ role: 'user', content: 'Hello' }] };
  const { status } = await send(baseUrl, 'POST', '/chat/completions', body);
  return status;
}

/** One more API process, with this master key. */
async function startWith(masterKey: string) {
  const api = startApp('api', { ...scripted.platform.environment, SLUICE_MASTER_KEY: masterKey });
  const [listening] = await eventually(
    async () => api.said('listening'),
    (lines) => lines.length > 0,
  );
  return { api, baseUrl: `${listening?.url}/v1` };
}

const command = (masterKey: string, ...args: string[]) =>
  run(
    ['apps/cli/main.ts', 'keys', ...args],
    standaloneEnvironment('/nonexistent', {
      DATABASE_URL: scripted.platform.database.connectionString,
      SLUICE_MASTER_KEY: masterKey,
    }),
  );

test('the master key is replaced while calls are served, and none of them fails', async () => {
  const { platform, upstream } = scripted;
  const { db } = platform.database;
  expect(await countSecrets(db)).toEqual({ [idOf(old)]: slugs.length + 2 });
  const { api, baseUrl: renewed } = await startWith(`${next},${old}`);
  expect(api.said('secrets are still encrypted with an old master key; run sluice keys rewrap')).toMatchObject([
    { master_key_id: idOf(old), secrets: slugs.length + 2 },
  ]);
  const statuses: number[] = [];
  const load = { isOver: false };
  const callers = [platform.baseUrl, renewed].map(async (baseUrl) => {
    for (let made = 0; !load.isOver; made += 1) statuses.push(await ask(baseUrl, slugs[made % slugs.length] ?? ''));
  });
  const writer = (async () => {
    for (let made = 0; !load.isOver; made += 1) {
      await store(renewed, `later-${made}`);
      statuses.push(await ask(renewed, `later-${made}`));
      // A changed key is read anew by every process, under whichever master key it is just now.
      const slug = slugs[made % slugs.length] ?? '';
      statuses.push((await send(platform.baseUrl, 'PUT', `/virtual-keys/${slug}`, { note: `${made}` })).status);
    }
  })();
  const rewrapped = await command(`${next},${old}`, 'rewrap');
  await eventually(
    async () => statuses.length,
    (made) => made > 100,
  );
  load.isOver = true;
  await Promise.all([...callers, writer]);
  expect(statuses.filter((status) => status !== 200)).toEqual([]);
  expect([rewrapped.code, rewrapped.stderr]).toEqual([0, '']);
  expect(rewrapped.stdout).toMatch(/^\d+ secrets encrypted with the newest master key\ndone: /);

  const again = await command(next, 'rewrap', '--json');
  expect(JSON.parse(again.stdout)).toEqual({ rewrapped: 0, left: {} });
  expect(Object.keys(await countSecrets(db))).toEqual([idOf(next)]);
  const { api: last, baseUrl: alone } = await startWith(next);
  expect(last.logged().filter(({ msg }) => msg.startsWith('secrets'))).toEqual([]);
  upstream.requests.length = 0;
  for (const slug of slugs) {
    expect([slug, await ask(alone, slug)]).toEqual([slug, 200]);
    expect(upstream.requests.splice(0).map(({ headers }) => headers['authorization'])).toEqual([
      `Bearer ${credentialOf(slug)}`,
    ]);
  }
  await expect(checkMasterKeys(db, parseMasterKeys(old))).rejects.toThrow(ConfigurationError);
  const refused = await command(old, 'rewrap');
  expect([refused.code, refused.stdout]).toEqual([1, '']);
  expect(refused.stderr).toMatch(new RegExp(`Current keys: ${idOf(old)}\\. .*need the key with the ID ${idOf(next)}`));
  for (const text of [rewrapped, again, refused].map(({ stdout, stderr }) => stdout + stderr)) {
    for (const key of [old, next]) expect(text).not.toContain(key);
  }
});

test('a rewrap that was cut off goes on where it was, and leaves alone what it cannot read', async () => {
  const { db } = scripted.platform.database;
  const [third, lost] = [newKey(), newKey()];
  const masterKeys = parseMasterKeys([third, next].join(','));
  const secrets = createSecrets({ masterKeys });
  const before = Object.values(await countSecrets(db)).reduce((sum, count) => sum + count, 0);
  const foreign = createSecrets({ masterKeys: parseMasterKeys(lost) });
  const owner = { workspaceId: 'ws_gone', ownerId: 'vk_gone' };
  const foreignId = await db.transaction().execute((tx) => foreign.store({ tx, now: new Date() }, owner, {}));

  let left = 7;
  const dying: Pick<Secrets, 'rewrap'> = {
    rewrap: async (where, row) => {
      left -= 1;
      if (left === 0) throw new Error('killed');
      return await secrets.rewrap(where, row);
    },
  };
  await expect(rewrapSecrets({ db, secrets: dying, masterKeys, pageRows: 3 })).rejects.toThrow('killed');
  const progress: number[] = [];
  const onProgress = (done: number): void => void progress.push(done);
  const report = await rewrapSecrets({ db, secrets, masterKeys, pageRows: 3, onProgress });
  const done = Number((await countSecrets(db))[idOf(third)]);
  expect([report.left, done]).toEqual([{ [idOf(lost)]: 1 }, before]);
  expect(report.rewrapped).toBeGreaterThan(before - 8);
  expect(progress).toEqual(progress.toSorted((one, other) => one - other));
  // The old key stays the one that processes start with, until nothing needs another.
  expect(await checkMasterKeys(db, parseMasterKeys(next))).toEqual({ [idOf(third)]: before, [idOf(lost)]: 1 });
  await db.deleteFrom('secret').where('id', '=', foreignId).execute();
  expect(await rewrapSecrets({ db, secrets, masterKeys })).toEqual({ rewrapped: 0, left: {} });
  await expect(checkMasterKeys(db, parseMasterKeys(next))).rejects.toThrow(ConfigurationError);
});

test('a new admin key is made on the server, shown once, and taken by running processes', async () => {
  const { platform } = scripted;
  const made = await command('unused', 'create-admin', '--name', 'rescued');
  expect([made.code, made.stderr]).toEqual([0, '']);
  const key = made.stdout.trim();
  const answer = await eventually(
    () => send(platform.baseUrl, 'GET', '/api-keys?limit=1', undefined, key),
    ({ status }) => status === 200,
  );
  const { data } = (await answer.json()) as { data: { id: string }[] };
  expect(data).toMatchObject([{ name: 'rescued', scopes: null, last_four: key.slice(-4) }]);
  const { pool } = platform.database;
  const sql = 'select metadata, data::text as text from event where stream_id = $1';
  const { rows } = await pool.query<{ metadata: object; text: string }>(sql, [data[0]?.id]);
  expect(rows).toMatchObject([{ metadata: { actor: { type: 'system', id: 'cli' } } }]);
  expect(rows[0]?.text).not.toContain(key);

  const otherKey = await createWorkspace(platform);
  const unclear = await command('unused', 'create-admin');
  expect([unclear.code, unclear.stdout]).toEqual([1, '']);
  const [, other = ''] = /(ws_\w+) \(test-/.exec(unclear.stderr) ?? [];
  const chosen = await command('unused', 'create-admin', '--workspace', other, '--json');
  expect(JSON.parse(chosen.stdout)).toMatchObject({ workspace_id: other, key: expect.stringMatching(/^slk_/) });
  const keys = await eventually(
    async () => await (await send(platform.baseUrl, 'GET', '/api-keys', undefined, otherKey)).json(),
    (list) => (list as { data: object[] }).data.length === 2,
  );
  expect(keys).toMatchObject({ data: [{ name: 'admin' }, { name: 'admin' }] });
  expect((await command('unused', 'create-admin', '--workspace', 'ws_nobody')).code).toBe(1);
  expect((await checkInlineModels(pool, inlineModels)).difference).toBeNull();
});

/** The commands of docs/keys.md below a heading. */
function commandOf(heading: string): string {
  const page = readFileSync(path.resolve(import.meta.dirname, '../../docs/keys.md'), 'utf8');
  const section = page.split(/^## /m).find((text) => text.startsWith(`${heading}\n`)) ?? '';
  return /^```sh\n(.*?)^```$/ms.exec(section)?.[1] ?? '';
}

test('an API key is replaced by the command of the page', async () => {
  const { baseUrl, adminKey } = scripted.platform;
  const made = await send(baseUrl, 'POST', '/api-keys', { name: 'replaced' });
  const { id, key: before } = (await made.json()) as { id: string; key: string };
  const env = { ...process.env, SLUICE: baseUrl, ID: id, KEY: adminKey };
  const { stdout } = await promisify(execFile)('bash', ['-euc', commandOf('Replace an API key')], { env });
  const { key: after } = JSON.parse(stdout) as { key: string };
  expect(after).not.toBe(before);
  for (const key of [before, after]) {
    expect((await send(baseUrl, 'GET', '/models', undefined, key)).status).toBe(200);
  }
});
