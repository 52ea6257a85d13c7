import { execFile, execFileSync } from 'node:child_process';
import { hash } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { erasePerson, eraseRequested } from '#apps/platform/erase-person.ts';
import { inlineModels } from '#apps/platform/models.ts';
import type { EventObject } from '#libs/contracts/logs/events.ts';
import { checkDigests } from '#libs/event-log/check-digests.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { saltedSha256, toEnvelope } from '#test/event-envelope.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { asker, join, type Ask } from './people-kit.ts';

let platform: TestPlatform;
let ask: Ask;
beforeAll(async () => {
  platform = await startPlatform();
  ask = asker(platform);
});
afterAll(() => platform.stop());

const email = 'Leaving.Person@example.net';
const names = { first_name: 'Leavinia', last_name: 'Personova' };

const metadata = { actor: { type: 'system', id: 'test' } } as const;

const events = async (workspace = 'org_default'): Promise<EventObject[]> =>
  (await ask('GET', `/events?limit=100&workspace_id=${workspace}`)).body.data as unknown as EventObject[];

/** The tables of all schemas whose rows contain a text, in any case and byte by byte: also in columns of bytes. */
async function tablesWith(text: string): Promise<string[]> {
  const { rows } = await platform.database.pool.query<{ name: string; bytes: string[] | null }>(`
    select class.oid::regclass::text as name, array_agg(quote_ident(attname)) filter (where atttypid = 'bytea'::regtype) as bytes
    from pg_class as class join pg_attribute on attrelid = class.oid and attnum > 0 and not attisdropped
    where relkind = 'r' and relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
    group by class.oid`);
  expect(rows.map(({ name }) => name)).toEqual(expect.arrayContaining(['event', 'pgboss.job_common']));
  const found: string[] = [];
  for (const { name, bytes } of rows) {
    const texts = ['item::text', ...(bytes ?? []).map((column) => `encode(item.${column}, 'escape')`)];
    const query = `select from ${name} as item where position(lower($1) in lower(concat_ws(' ', ${texts.join(', ')}))) > 0 limit 1`;
    if (((await platform.database.pool.query(query, [text])).rowCount ?? 0) > 0) found.push(name);
  }
  return found;
}

/** The files below a folder that contain a text, in any case. */
const filesWith = (text: string, folder = platform.dataDir): string => {
  try {
    return execFileSync('grep', ['-rilF', text, folder], { encoding: 'utf8' });
  } catch {
    return '';
  }
};

const project = path.join(import.meta.dirname, '../..');
const execute = promisify(execFile);
// The platform of this process seals meanwhile.
const run = async (args: readonly string[]): Promise<string> => {
  const env = { ...process.env, ...platform.environment };
  return (await execute(process.execPath, [...args], { cwd: project, env })).stdout;
};
/** Runs an operator's command. */
const sluice = (...args: string[]): Promise<string> => run(['apps/cli/main.ts', ...args]);
const verify = (...args: string[]): Promise<string> => run(['apps/audit-verify/audit-verify.mjs', ...args]);

const sealedSize = async (): Promise<number> => {
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  const answer = await fetch(`${platform.baseUrl}/audit/checkpoint`, { headers });
  return Number((await answer.text()).split('\n')[1]);
};

/** An export of the log, and a proof of the event that has the address of the person. */
async function proveAll(folder: string, userId: string): Promise<{ exported: string; proof: string }> {
  const [exported, proof] = [path.join(folder, 'before'), path.join(folder, 'proof')];
  const { rows } = await platform.database.pool.query<{ count: number; created: string }>(
    `select count(*)::int as count, max(event_id::text) filter (where type = 'user.created' and stream_id = $1) as created
    from event`,
    [userId],
  );
  const [{ count, created } = { count: 0, created: '' }] = rows;
  await eventually(sealedSize, (size) => size >= count);
  await sluice('audit', 'export', '--out', exported);
  await sluice('audit', 'prove', '--event', created, '--out', proof);
  return { exported, proof };
}

/** A person with a key who makes a call that is recorded, with the e-mail address in its metadata. */
async function makePerson(): Promise<string> {
  await ask('PUT', '/admin/workspaces/default', { defaults: { recording: { bodies: true } } });
  const [workspace] = (await ask('GET', '/admin/workspaces')).body.data as unknown as { id: string }[];
  const { id, key } = await join(ask, {
    email,
    workspaces: [{ id: workspace?.id ?? '', role: 'member' }],
    scopes: ['chat.write'],
  });
  await ask('PUT', `/admin/users/${id}`, names);
  const call = { model: '@simulator/sim-small', messages: [{ role: 'user', content: `I am ${email}` }] };
  expect(await ask('POST', '/chat/completions', call, key)).toMatchObject({ status: 200 });
  // Refused, with the address that it came from.
  expect((await ask('GET', '/admin/users', undefined, key)).status).toBe(403);
  await eventually(
    () => tablesWith(email),
    (tables) => ['event', 'resource', 'value_rollup_minute'].every((table) => tables.includes(table)),
  );
  return id;
}

test('an erased person is in no table and no file, and every hash stays valid', async ({ onTestFinished }) => {
  const id = await makePerson();
  expect(await tablesWith(names.last_name)).toEqual(expect.arrayContaining(['event', 'resource']));
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-erasure-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const { exported, proof } = await proveAll(folder, id);
  expect(filesWith(email, exported)).toContain('events.ndjson');
  const before = await events();
  expect(await ask('DELETE', `/admin/users/${id}?erase=true`)).toMatchObject({
    status: 400,
    body: { error: { code: 'missing_required_parameter', param: 'reason' } },
  });
  expect((await ask('DELETE', `/admin/users/${id}?erase=true&reason=asked%20on%20a%20form`)).status).toBe(200);
  const { db } = platform.database;
  const stopped = erasePerson(db, { userId: id, reason: 'asked on a form', metadata }, () => {
    throw new Error('interrupted');
  });
  await expect(stopped).rejects.toThrow('interrupted');
  // The task of the worker.
  expect(await eraseRequested(db)).toBe(1);
  const after = await eventually(events, (found) => found.some(({ type }) => type === 'user.erased'));
  for (const text of [email, names.first_name, names.last_name]) {
    expect(await tablesWith(text)).toEqual([]);
    expect(filesWith(text)).toBe('');
  }
  expect(after.find(({ type }) => type === 'user.erased')?.data).toMatchObject({
    reason: 'asked on a form',
    calls: 1,
  });
  const created = after.find(({ type, stream }) => type === 'user.created' && stream === id);
  expect(created).toMatchObject({ data: { email: '[erased]' }, data_salt: null });
  for (const event of before) {
    const now = after.find((each) => each.id === event.id);
    expect([now?.sha256, now?.data_sha256, now?.metadata_sha256]).toEqual([
      event.sha256,
      event.data_sha256,
      event.metadata_sha256,
    ]);
  }
  for (const event of after) {
    const { workspace_id: workspaceId, stream: streamId, stream_version: streamVersion } = event;
    const recorded = { workspaceId, streamId, streamVersion, schemaVersion: event.schema_version, type: event.type };
    const digests = { dataSha256: event.data_sha256, metadataSha256: event.metadata_sha256 };
    const envelope = { ...recorded, eventId: event.id, recordedAt: new Date(event.recorded_at) };
    expect(hash('sha256', toEnvelope(envelope, digests))).toBe(event.sha256);
  }
  const whole = after.filter(({ data_salt: salt }) => salt !== null);
  expect(whole.map(({ data_salt: salt, data }) => saltedSha256(salt ?? '', data))).toEqual(
    whole.map(({ data_sha256: digest }) => digest),
  );
  expect(await checkDigests(db, ['resource', 'batch'])).toMatchObject({ changed: 0, missing: 0 });
  expect(await checkInlineModels(platform.database.pool, inlineModels)).toMatchObject({ difference: null });
  // What was proved before stays proved, and the log continues the checkpoint of that time.
  const [key = ''] = (await readFile(path.join(exported, 'key.txt'), 'utf8')).split('\n');
  expect(await verify(exported, '--key', key)).toMatch(/^OK: /);
  expect(await verify(proof, '--key', key)).toMatch(/^OK: /);
  const later = path.join(folder, 'after');
  await sluice('audit', 'export', '--out', later);
  const checkpoint = path.join(exported, 'trees/1/checkpoint');
  expect(await verify(later, '--key', key, '--checkpoint', checkpoint)).toMatch(/^OK: /);
  for (const text of [email, names.first_name, names.last_name]) expect(filesWith(text, later)).toBe('');
});

test('any other change of an event than an erasure is refused', async () => {
  const { db, pool } = platform.database;
  const created = sql<{ position: number }>`
    select position from event where type = 'workspace.created' limit 1`;
  const { rows } = await created.execute(db);
  const at = `where position = ${rows[0]?.position ?? 0}`;
  for (const change of [
    `data = '{"name":"another"}'`,
    `data = '{}'`,
    `data = '{"name":"[erased]","more":1}'`,
    'data_salt = null',
    `type = '[erased]'`,
    'data = data',
  ]) {
    await expect(pool.query(`update event set ${change} ${at}`)).rejects.toMatchObject({ code: '42501' });
  }
  expect(await checkDigests(db, [])).toMatchObject({ changed: 0 });
});
