import { afterAll, beforeAll, expect, test } from 'vitest';
import { erasePerson, eraseRequested } from '#apps/platform/erase-person.ts';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { asker, join, type Ask } from './people-kit.ts';

let platform: TestPlatform;
let ask: Ask;
let workspace: { id: string; key: string };
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  ask = asker(platform);
  const { body } = await ask('POST', '/admin/workspaces', { name: 'Search' });
  const made = await ask('POST', '/api-keys', { name: 'ci', workspace_id: body['id'] });
  workspace = { id: body['id'] ?? '', key: made.body['key'] ?? '' };
});
afterAll(() => platform.stop());

const path = '/admin/workspaces/search';
const hold = (active: boolean, reason: string, key?: string) =>
  ask('PUT', path, { legal_hold: { active, reason } }, key);
const refused = { status: 409, body: { error: { code: 'legal_hold', message: expect.stringContaining('search') } } };
const metadata = { actor: { type: 'system', id: 'test' } } as const;

async function upload(): Promise<string> {
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new Blob(['{}\n']), 'a.jsonl');
  const headers = { authorization: `Bearer ${workspace.key}` };
  const response = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
  return ((await response.json()) as { id: string }).id;
}

test('only the organisation can set and lift a hold, and each is an event with reason and actor', async () => {
  expect((await ask('GET', path)).body).toMatchObject({ legal_hold: null });
  expect(await hold(true, 'case 17', workspace.key)).toMatchObject({
    status: 403,
    body: { error: { code: 'organisation_key_required' } },
  });
  expect((await hold(true, '')).status).toBe(400);
  const set = (await hold(true, 'case 17')).body as unknown as { legal_hold: { since: string } };
  expect(set.legal_hold).toMatchObject({ active: true, reason: 'case 17' });
  // Another reason does not change since when the hold is active.
  expect((await hold(true, 'cases 17 and 18')).body).toMatchObject({ legal_hold: { since: set.legal_hold.since } });
  expect((await hold(false, 'settled')).body).toMatchObject({ legal_hold: { active: false, reason: 'settled' } });
  const readHolds = async () => {
    const { data } = (await ask('GET', `/events?workspace_id=${workspace.id}&stream=${workspace.id}&limit=100`)).body;
    return (data as unknown as { type: string; data: object }[]).filter((event) => 'legal_hold' in event.data);
  };
  // An event is listed when no older transaction is open, and other tests use the same server.
  expect(await eventually(readHolds, ({ length }) => length === 3)).toMatchObject(
    [
      { active: true, reason: 'case 17' },
      { active: true, reason: 'cases 17 and 18' },
      { active: false, reason: 'settled' },
    ].map((legal_hold) => ({
      type: 'workspace.updated',
      data: { legal_hold },
      metadata: { actor: { principal: { type: 'organisation_key' } } },
    })),
  );
});

test('a hold refuses that files or the workspace are deleted, until it is lifted', async () => {
  const file = await upload();
  await hold(true, 'case 17');
  expect(await ask('DELETE', `/files/${file}`, undefined, workspace.key)).toMatchObject({
    status: 409,
    body: {
      error: { code: 'legal_hold', message: expect.stringContaining(`PUT /v1/admin/workspaces/${workspace.id}`) },
    },
  });
  expect((await ask('DELETE', '/files/file-unknown', undefined, workspace.key)).status).toBe(404);
  expect(await ask('DELETE', path)).toMatchObject(refused);
  await hold(false, 'settled');
  expect((await ask('DELETE', `/files/${file}`, undefined, workspace.key)).status).toBe(200);
});

test('a hold refuses to erase a person whose data is in the workspace', async () => {
  const { db } = platform.database;
  const member = await join(ask, { workspaces: [{ id: workspace.id, role: 'member' }] });
  const waiting = await join(ask, { workspaces: [{ id: workspace.id, role: 'member' }] });
  const stranger = await join(ask);
  // Named in a record of the workspace, without ever having been a member.
  const { id: named } = await join(ask, { email: 'named@example.org' });
  await ask('POST', '/configs', { name: 'of named@example.org', config: {} }, workspace.key);
  await ask('DELETE', `/admin/users/${waiting.id}?erase=true&reason=asked`);
  await hold(true, 'case 17');
  for (const id of [member.id, named])
    expect(await ask('DELETE', `/admin/users/${id}?erase=true&reason=asked`)).toMatchObject(refused);
  expect((await ask('GET', `/admin/users/${member.id}`)).status).toBe(200);
  expect((await ask('DELETE', `/admin/users/${stranger.id}?erase=true&reason=asked`)).status).toBe(200);
  expect((await ask('DELETE', `/admin/users/${member.id}`)).status).toBe(200);
  // `sluice audit erase`, and the task of the worker, which has one person who waits and one who does not.
  const erasure = { userId: member.id, reason: 'asked', metadata };
  await expect(erasePerson(db, erasure)).rejects.toMatchObject({ code: 'legal_hold' });
  expect(await eraseRequested(db)).toBe(1);
  await hold(false, 'settled');
  expect(await eraseRequested(db)).toBe(1);
  expect((await erasePerson(db, erasure)).events).toBeGreaterThan(0);
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toBeNull();
});

test('a workspace has its own times, within bounds', async () => {
  const times = { request_log_retention_days: 7, results_retention_days: 3_650 };
  expect((await ask('PUT', path, { defaults: times })).body).toMatchObject({ defaults: times });
  expect((await ask('PUT', path, { defaults: { results_retention_days: null } })).body).toMatchObject({
    defaults: { request_log_retention_days: 7, results_retention_days: null },
  });
  for (const days of [0, 3_651, 1.5])
    expect(await ask('PUT', path, { defaults: { request_log_retention_days: days } })).toMatchObject({
      status: 400,
      body: { error: { param: 'defaults.request_log_retention_days' } },
    });
});
