import { execFileSync } from 'node:child_process';
import { hash } from 'node:crypto';
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

/** The tables whose rows contain a text, in any case. */
async function tablesWith(text: string): Promise<string[]> {
  const { rows } = await platform.database.pool.query<{ name: string }>(
    `select relname as name from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace`,
  );
  const found: string[] = [];
  for (const { name } of rows) {
    const query = `select from "${name}" as row where position(lower($1) in lower(row::text)) > 0 limit 1`;
    if (((await platform.database.pool.query(query, [text])).rowCount ?? 0) > 0) found.push(name);
  }
  return found;
}

const filesWith = (text: string): string => {
  try {
    return execFileSync('grep', ['-rilF', text, platform.dataDir], { encoding: 'utf8' });
  } catch {
    return '';
  }
};

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

test('an erased person is in no table and no file, and every hash stays valid', async () => {
  const id = await makePerson();
  expect(await tablesWith(names.last_name)).toEqual(expect.arrayContaining(['event', 'resource']));
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
});

test('more than an erasure recorded is found, and anything else is refused', async () => {
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
  await pool.query(`update event set data = jsonb_set(data::jsonb, '{name}', '"[erased]"')::json ${at}`);
  const { changed, findings } = await checkDigests(db, []);
  expect(changed).toBe(1);
  expect(findings[0]?.message).toContain('more of the event was erased than recorded');
});
