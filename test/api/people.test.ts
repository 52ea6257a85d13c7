import { createHash } from 'node:crypto';
import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { welcomeUser } from '#libs/people/users/welcome-user.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { eventually } from '#test/eventually.ts';
import { asker, join, tokenOf, type Ask } from './people-kit.ts';

let platform: TestPlatform;
let ask: Ask;
let client: Portkey;
beforeAll(async () => {
  platform = await startPlatform({ worker: false, environment: { SLUICE_OWNER_EMAIL: 'Ada@Example.org' } });
  ask = asker(platform);
  client = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
});
afterAll(() => platform?.stop());

/** What a method of the client resolved with, without what it adds itself. */
const plain = (answer: unknown): Record<string, unknown> & { data: Record<string, unknown>[] } =>
  JSON.parse(JSON.stringify(answer)) as never;
const refusal = async (call: Promise<unknown>): Promise<unknown> => {
  try {
    return await call;
  } catch (error) {
    return { status: (error as { status: number }).status };
  }
};

async function makeWorkspace(name: string): Promise<string> {
  return (await ask('POST', '/admin/workspaces', { name })).body['id'] ?? '';
}

test('the first start makes the owner, who is a member of the first workspace', async () => {
  const users = plain(await client.admin.users.list({ role: 'owner' }));
  expect(users).toMatchObject({ object: 'list', total: 1, data: [{ role: 'owner', email: 'Ada@Example.org' }] });
  const { body } = await ask('GET', '/admin/workspaces/default');
  expect(body).toMatchObject({ users: [{ id: users.data[0]?.['id'], role: 'admin', org_role: 'owner' }] });
  expect(users.data[0]?.['workspace_ids']).toEqual([body['id']]);
  expect(plain(await client.admin.users.list({ email: 'ada@example.ORG' }))).toMatchObject({ total: 1 });
});

test('an invite cannot promise a key with a scope that no operation has', async () => {
  const workspaces = [{ id: await makeWorkspace('scoped'), role: 'member' }];
  const details = { scopes: ['chat.write', 'chat.read'] };
  const body = { email: 'scoped@example.org', role: 'member', workspaces, workspace_api_key_details: details };
  expect(await ask('POST', '/admin/users/invites', body)).toMatchObject({
    status: 400,
    body: { error: { code: 'invalid_value', param: 'workspace_api_key_details.scopes[1]' } },
  });
});

test("the official client's methods for invites and users work unchanged", async () => {
  const workspaceId = await makeWorkspace('invited');
  const made = plain(
    await client.admin.users.invites.create({
      email: 'Grace@example.org',
      role: 'member',
      workspaces: [{ id: workspaceId, role: 'manager' }],
      workspace_api_key_details: { scopes: ['configs.read', 'configs.write'] },
    }),
  );
  const inviteId = String(made['id']);
  expect(made).toMatchObject({
    id: expect.stringMatching(/^invite_/),
    invite_link: expect.stringContaining('token=inv_'),
  });
  const pending = {
    object: 'invite',
    id: inviteId,
    email: 'Grace@example.org',
    role: 'member',
    status: 'pending',
    accepted_at: null,
    invited_by: expect.stringMatching(/^key_/),
  };
  expect(plain(await client.admin.users.invites.retrieve({ inviteId }))).toMatchObject(pending);
  const page = { status: 'pending', email: 'grace@EXAMPLE.org', role: 'member', pageSize: 5, currentPage: 0 };
  expect(plain(await client.admin.users.invites.list(page))).toMatchObject({ total: 1, data: [pending] });
  expect(await ask('POST', '/admin/users/invites', { email: 'GRACE@example.org', role: 'member' })).toMatchObject({
    status: 409,
    body: { error: { code: 'invite_pending', param: 'email' } },
  });

  // A new link ends the old one.
  const resent = plain(await client.admin.users.invites.resend({ inviteId }));
  const accept = (token: string) =>
    ask('POST', '/admin/users/invites/accept', { token, first_name: 'Grace', last_name: 'Hopper' }, null);
  expect(await accept(tokenOf(String(made['invite_link'])))).toMatchObject({
    status: 404,
    body: { error: { code: 'invite_not_found' } },
  });
  const token = tokenOf(String(resent['inviteLink']));
  const [first, second] = await Promise.all([accept(token), accept(token)]);
  const [accepted, late] = first.status === 200 ? [first, second] : [second, first];
  expect(late).toMatchObject({ status: 409, body: { error: { code: 'invite_accepted' } } });
  expect(accepted).toMatchObject({
    status: 200,
    body: {
      object: 'user',
      email: 'Grace@example.org',
      first_name: 'Grace',
      role: 'member',
      workspace_ids: [workspaceId],
      workspace_api_keys: [{ workspace_id: workspaceId, key: expect.stringMatching(/^slk_/) }],
    },
  });
  expect(plain(await client.admin.users.invites.retrieve({ inviteId }))).toMatchObject({
    status: 'accepted',
    accepted_at: expect.any(String),
  });
  expect(await refusal(client.admin.users.invites.delete({ inviteId }))).toEqual({ status: 409 });

  const userId = accepted.body['id'] ?? '';
  expect(plain(await client.admin.users.retrieve({ userId }))).toMatchObject({ id: userId, last_name: 'Hopper' });
  expect(plain(await client.admin.users.list({ pageSize: 1, currentPage: 0, role: 'member' }))).toMatchObject({
    object: 'list',
    data: [{ id: userId }],
  });
  expect(plain(await client.admin.users.update({ userId, role: 'admin' }))).toMatchObject({ role: 'admin' });
  expect(plain(await client.admin.users.delete({ userId }))).toMatchObject({ deleted: true });
  expect(await refusal(client.admin.users.retrieve({ userId }))).toEqual({ status: 404 });
  // The address is free again.
  const again = plain(await client.admin.users.invites.create({ email: 'grace@example.org', role: 'member' }));
  expect(plain(await client.admin.users.invites.delete({ inviteId: String(again['id']) }))).toMatchObject({
    deleted: true,
  });
  expect(await accept(tokenOf(String(again['invite_link'])))).toMatchObject({
    status: 409,
    body: { error: { code: 'invite_cancelled' } },
  });
  expect(plain(await client.admin.users.invites.list({ status: 'cancelled' }))).toMatchObject({
    data: [{ id: again['id'], status: 'cancelled' }],
  });
});

test("the official client's methods for workspaces and their members work unchanged", async () => {
  const first = await join(ask);
  const second = await join(ask);
  const made = plain(
    await client.admin.workspaces.create({
      name: 'Research',
      description: 'asks',
      defaults: { metadata: { team: 'research' } },
      users: [first.id],
    }),
  );
  const workspaceId = String(made['id']);
  expect(made).toMatchObject({ slug: 'research', defaults: { metadata: { team: 'research' } }, usage_limits: [] });
  const one = plain(await client.admin.workspaces.retrieve({ workspaceId }));
  expect(one).toMatchObject({ description: 'asks', users: [{ id: first.id, role: 'member', status: 'active' }] });
  expect(
    plain(await client.admin.workspaces.list({ exact_name: 'Research', page_size: 1, current_page: 0 })),
  ).toMatchObject({
    total: 1,
    data: [{ id: workspaceId }],
  });
  expect(plain(await client.admin.workspaces.update({ workspaceId, description: 'still asks' }))).toMatchObject({
    description: 'still asks',
    defaults: { metadata: { team: 'research' } },
  });

  const { users } = client.admin.workspaces;
  const added = plain(await users.create({ workspaceId, users: [{ id: second.id, role: 'admin' }] }));
  expect(added.data).toMatchObject([
    { object: 'workspace-user', id: second.id, role: 'admin', workspace_id: workspaceId },
  ]);
  expect(plain(await users.list({ workspaceId, page_size: 1, current_page: 0 }))).toMatchObject({
    total: 2,
    has_more: true,
    data: [{ id: second.id }],
  });
  const list = async (query: string) => (await ask('GET', `/admin/workspaces/research/users?${query}`)).body;
  expect(await list(`limit=1&after=${second.id}`)).toMatchObject({ has_more: false, data: [{ id: first.id }] });
  expect(await list('role=admin')).toMatchObject({ total: 1, data: [{ id: second.id }] });
  expect(plain(await users.update({ workspaceId, userId: first.id, role: 'manager' }))).toMatchObject({
    role: 'manager',
  });
  expect(plain(await users.retrieve({ workspaceId, userId: first.id }))).toMatchObject({
    role: 'manager',
    org_role: 'member',
    scopes: expect.arrayContaining(['configs.write']),
    settings: null,
  });
  expect(plain(await users.delete({ workspaceId, userId: first.id }))).toMatchObject({ deleted: true });
  expect(await refusal(users.retrieve({ workspaceId, userId: first.id }))).toEqual({ status: 404 });
  expect(
    await ask('POST', `/admin/workspaces/${workspaceId}/users`, { users: [{ id: 'user_x', role: 'member' }] }),
  ).toMatchObject({
    status: 404,
    body: { error: { code: 'user_not_found' } },
  });

  // Deleting it ends the memberships.
  expect(plain(await client.admin.workspaces.delete({ workspaceId, name: 'Research' }))).toMatchObject({
    deleted: true,
  });
  expect((await ask('GET', `/admin/users/${second.id}`)).body['workspace_ids']).toEqual([]);
  expect((await ask('GET', `/admin/workspaces/${workspaceId}/users`)).status).toBe(404);
});

test('an invite expires, and is good again when it is resent', async () => {
  const { body } = await ask('POST', '/admin/users/invites', { email: 'late@example.org', role: 'member' });
  const id = body['id'] ?? '';
  const past = new Date(Date.now() - 1_000).toISOString();
  const { pool } = platform.database;
  await pool.query(`update resource set data = data || jsonb_build_object('expires_at', $2::text) where id = $1`, [
    id,
    past,
  ]);
  const accept = (link: string | undefined) =>
    ask('POST', '/admin/users/invites/accept', { token: tokenOf(link) }, null);
  expect(await accept(body['invite_link'])).toMatchObject({ status: 409, body: { error: { code: 'invite_expired' } } });
  expect((await ask('GET', '/admin/users/invites?status=expired')).body).toMatchObject({
    data: [{ id, status: 'expired' }],
  });
  const resent = await ask('POST', `/admin/users/invites/${id}/resend`);
  expect(await accept(resent.body['invite_link'])).toMatchObject({ status: 200, body: { email: 'late@example.org' } });
});

test('whoever is a user already gets the workspaces of an invite and nothing else', async () => {
  const [one, two] = [await makeWorkspace('one'), await makeWorkspace('two')];
  const { id } = await join(ask, {
    email: 'Known@example.org',
    role: 'admin',
    workspaces: [{ id: one, role: 'manager' }],
  });
  const again = await join(ask, {
    email: 'known@EXAMPLE.org',
    workspaces: [
      { id: one, role: 'member' },
      { id: two, role: 'member' },
    ],
  });
  expect(again.id).toBe(id);
  expect((await ask('GET', `/admin/users/${id}`)).body).toMatchObject({
    email: 'Known@example.org',
    role: 'admin',
    workspace_ids: [one, two],
  });
  expect((await ask('GET', `/admin/workspaces/${one}/users/${id}`)).body).toMatchObject({ role: 'manager' });
});

test('a key of a user does what the role allows, follows it, and ends with the membership or the user', async () => {
  const workspaceId = await makeWorkspace('keyed');
  const scopes = ['configs.read', 'configs.write', 'members.read', 'members.write'];
  const { id, key } = await join(ask, { workspaces: [{ id: workspaceId, role: 'member' }], scopes });
  const config = { name: 'c', config: { virtual_key: 'a' } };
  expect((await ask('GET', '/configs', undefined, key)).status).toBe(200);
  expect(await ask('POST', '/configs', config, key)).toMatchObject({
    status: 403,
    body: { error: { code: 'missing_scope' } },
  });
  const member = `/admin/workspaces/${workspaceId}/users/${id}`;
  await ask('PUT', member, { role: 'manager' });
  const made = await ask('POST', '/configs', config, key);
  expect(made.status).toBe(200);
  const { rows } = await platform.database.pool.query<{ metadata: object }>(
    'select metadata from event where stream_id = $1',
    [made.body['id']],
  );
  expect(rows[0]?.metadata).toMatchObject({
    actor: {
      type: 'api_key',
      principal: { type: 'user', id, role: 'manager', organisation_role: 'member' },
      workspace_id: workspaceId,
    },
  });
  // Not what the key does not have, whatever the role.
  expect((await ask('GET', '/logs', undefined, key)).status).toBe(403);
  expect((await ask('DELETE', member)).status).toBe(200);
  expect((await ask('GET', '/configs', undefined, key)).status).toBe(401);
  expect((await ask('GET', `/api-keys?workspace_id=${workspaceId}`)).body).toMatchObject({ total: 0 });

  const other = await join(ask, { workspaces: [{ id: workspaceId, role: 'member' }], scopes });
  expect((await ask('GET', '/configs', undefined, other.key)).status).toBe(200);
  expect((await ask('DELETE', `/admin/users/${other.id}`)).status).toBe(200);
  expect((await ask('GET', '/configs', undefined, other.key)).status).toBe(401);
});

test('the removal of a person revokes the service keys that the person made if asked to', async () => {
  const [one, two] = [await makeWorkspace('made-one'), await makeWorkspace('made-two')];
  const workspaces = [one, two].map((id) => ({ id, role: 'admin' }));
  const { id, key } = await join(ask, { workspaces, scopes: ['api_keys.read', 'api_keys.write'] });
  const { id: otherId } = await join(ask);
  const service = { type: 'organisation-service', name: 'people', scopes: ['users.read', 'users.write'] };
  const { body: people } = await ask('POST', '/api-keys', service);
  const make = async (name: string, maker: string) => {
    const { status, body } = await ask(
      'POST',
      '/api-keys',
      { name, scopes: ['api_keys.read', 'api_keys.write'] },
      maker,
    );
    expect(status).toBe(200);
    return { id: body['id'] ?? '', key: body['key'] ?? '' };
  };
  const direct = await make('direct', key);
  const indirect = await make('indirect', direct.key);
  expect((await ask('DELETE', `/api-keys/${direct.id}?workspace_id=${one}`)).status).toBe(200);
  const later = await make('later', key);
  const { body: foreign } = await ask('POST', '/api-keys', {
    name: 'of somebody else',
    workspace_id: one,
    scopes: ['api_keys.read', 'api_keys.write'],
  });
  const listed = await ask('GET', `/api-keys?workspace_id=${one}&created_by=${id}`);
  expect(listed.body.data.map((record) => record['name'])).toEqual(['later', 'indirect']);

  // Whoever rotates a key has seen its value as well.
  const rotated = await ask('POST', `/api-keys/${foreign['id']}/rotate`, {}, later.key);
  expect(rotated.status).toBe(200);
  const known = await ask('GET', `/api-keys?workspace_id=${one}&created_by=${id}`);
  expect(known.body.data.map((record) => record['name'])).toEqual(['of somebody else', 'later', 'indirect']);
  expect((await ask('DELETE', `/api-keys/${foreign['id']}?workspace_id=${one}`)).status).toBe(200);

  // What the caller may not revoke itself, it cannot revoke in this way.
  const member = `/admin/workspaces/${one}/users/${id}`;
  const refused = await ask('DELETE', `/admin/users/${id}?revoke_keys=true`, undefined, people['key']);
  expect(refused).toMatchObject({ status: 403, body: { error: { code: 'missing_scope' } } });
  expect((await ask('GET', member)).status).toBe(200);
  expect((await ask('DELETE', `/admin/users/${otherId}`, undefined, people['key'])).status).toBe(200);

  expect((await ask('DELETE', member)).status).toBe(200);
  expect((await ask('GET', '/api-keys', undefined, later.key)).status).toBe(200);
  const removed = await ask('DELETE', `/admin/users/${id}?revoke_keys=true`);
  expect(removed).toMatchObject({ status: 200, body: { deleted: true } });
  for (const made of [later, indirect]) expect((await ask('GET', '/api-keys', undefined, made.key)).status).toBe(401);
});

test('nobody gives or takes a role that may do more, or acts in another workspace', async () => {
  const [own, foreign] = [await makeWorkspace('ours'), await makeWorkspace('theirs')];
  const shared = await makeWorkspace('shared');
  const everything = ['users.read', 'users.write', 'members.read', 'members.write', 'workspaces.write'];
  const all = { workspaces: [{ id: own, role: 'admin' }] };
  const { body: full } = await ask('POST', '/api-keys', { name: 'service', workspace_id: own });
  const stranger = await join(ask, { workspaces: [{ id: shared, role: 'member' }] });
  const manager = await join(ask, {
    workspaces: [
      { id: own, role: 'manager' },
      { id: shared, role: 'member' },
    ],
    scopes: ['members.read', 'members.write'],
  });
  const admin = await join(ask, { role: 'admin', ...all, scopes: everything });
  const { id: ownerId } = (await ask('GET', '/admin/users?role=owner')).body.data[0] as never as { id: string };
  const higher = { status: 403, body: { error: { code: 'higher_role' } } };
  const hidden = { status: 404, body: { error: { code: 'workspace_not_found' } } };
  const add = (workspace: string, role: string, key?: string) =>
    ask('POST', `/admin/workspaces/${workspace}/users`, { users: [{ id: stranger.id, role }] }, key);

  // A key with few scopes hands on no more than these, whatever it may administer.
  expect(await add(own, 'member', manager.key)).toMatchObject(higher);
  expect(await add(foreign, 'member', full['key'] ?? '')).toMatchObject(hidden);
  expect(await add(own, 'admin')).toMatchObject({ status: 200 });
  expect(await ask('DELETE', `/admin/workspaces/${own}/users/${stranger.id}`, undefined, manager.key)).toMatchObject(
    higher,
  );
  expect((await ask('GET', `/admin/workspaces/${own}/users`, undefined, manager.key)).status).toBe(200);
  expect(await ask('GET', `/admin/workspaces/${foreign}/users`, undefined, manager.key)).toMatchObject(hidden);
  // The organisation's admin reaches every workspace, and its people as far as the key goes.
  expect((await ask('GET', `/admin/workspaces/${foreign}/users`, undefined, admin.key)).status).toBe(200);
  expect((await ask('PUT', `/admin/workspaces/${foreign}`, { description: 'x' }, admin.key)).status).toBe(200);
  const put = (userId: string, role: string, key?: string) => ask('PUT', `/admin/users/${userId}`, { role }, key);
  expect(await put(stranger.id, 'owner', admin.key)).toMatchObject(higher);
  expect(await put(stranger.id, 'admin', admin.key)).toMatchObject(higher);
  expect(await put(ownerId, 'member', admin.key)).toMatchObject(higher);
  expect(await ask('DELETE', `/admin/users/${ownerId}`, undefined, admin.key)).toMatchObject(higher);
  const invite = { email: 'escalates@example.org', role: 'admin' };
  expect(await ask('POST', '/admin/users/invites', invite, admin.key)).toMatchObject(higher);
  expect((await ask('POST', '/admin/users/invites', invite, full['key'])).status).toBe(403);
  expect((await ask('GET', '/admin/users', undefined, full['key'])).body).toMatchObject({ total: 0 });
  expect((await ask('GET', `/admin/users/${ownerId}`, undefined, full['key'])).status).toBe(404);

  // There is always an owner.
  expect(await put(ownerId, 'member')).toMatchObject({ status: 409, body: { error: { code: 'last_owner' } } });
  expect(await ask('DELETE', `/admin/users/${ownerId}`)).toMatchObject({ status: 409 });
  expect((await put(stranger.id, 'owner')).status).toBe(200);
  const both = await Promise.all([put(ownerId, 'member'), put(stranger.id, 'member')]);
  expect(new Set(both.map(({ status }) => status))).toEqual(new Set([200, 409]));
});

test('an admin of a workspace can add only people with whom a workspace is shared', async () => {
  const [own, shared] = [await makeWorkspace('adding'), await makeWorkspace('between')];
  const known = await join(ask, { workspaces: [{ id: shared, role: 'member' }] });
  const hidden = await join(ask);
  const workspaces = [
    { id: own, role: 'admin' },
    { id: shared, role: 'member' },
  ];
  const admin = await join(ask, { workspaces });
  const ofAdmin = { name: 'admin', type: 'workspace-user', workspace_id: own, user_id: admin.id };
  const { status, body: made } = await ask('POST', '/api-keys', ofAdmin);
  expect(status).toBe(200);
  const { body: service } = await ask('POST', '/api-keys', { name: 'service', workspace_id: own });
  const add = (id: string, key: string | undefined) =>
    ask('POST', `/admin/workspaces/${own}/users`, { users: [{ id, role: 'member' }] }, key);
  const unknown = { status: 404, body: { error: { code: 'user_not_found' } } };
  // The answer is the same for an id that nobody has.
  for (const id of [hidden.id, 'user_nobody']) expect(await add(id, made['key'])).toMatchObject(unknown);
  expect(await add(known.id, service['key'])).toMatchObject(unknown);
  const noMember = (id: string) => ({
    status: 404,
    body: { error: { code: 'member_not_found', message: `This workspace has no member '${id}'.`, param: 'userId' } },
  });
  for (const id of [hidden.id, 'user_nobody']) {
    const one = `/admin/workspaces/${own}/users/${id}`;
    expect(await ask('GET', one, undefined, made['key'])).toMatchObject(noMember(id));
    expect(await ask('PUT', one, { role: 'member' }, made['key'])).toMatchObject(noMember(id));
    expect(await ask('DELETE', one, undefined, made['key'])).toMatchObject(noMember(id));
  }
  expect(await add(known.id, made['key'])).toMatchObject({ status: 200, body: { data: [{ id: known.id }] } });
  expect(await add(known.id, service['key'])).toMatchObject({ status: 200 });
});

test('an invite ends with whoever made it', async () => {
  const workspaceId = await makeWorkspace('gone');
  const scopes = ['users.write', 'workspaces.read'];
  const admin = await join(ask, { role: 'admin', workspaces: [{ id: workspaceId, role: 'admin' }], scopes });
  const { body } = await ask('POST', '/admin/users/invites', { email: 'back@example.org', role: 'member' }, admin.key);
  expect(body['invited_by']).toBe(admin.id);
  await ask('PUT', `/admin/users/${admin.id}`, { role: 'member' });
  const accept = { token: tokenOf(body['invite_link']) };
  expect(await ask('POST', '/admin/users/invites/accept', accept, null)).toMatchObject({
    status: 409,
    body: { error: { code: 'inviter_gone' } },
  });
  // The refusal leaves an event, and the invite does not come back with the role.
  await ask('PUT', `/admin/users/${admin.id}`, { role: 'admin' });
  expect(await ask('POST', '/admin/users/invites/accept', accept, null)).toMatchObject({
    status: 409,
    body: { error: { code: 'invite_cancelled' } },
  });
  const text = 'select type from event where stream_id = $1 order by stream_version';
  const { rows } = await platform.database.pool.query(text, [body['id']]);
  expect(rows).toEqual([{ type: 'invite.created' }, { type: 'invite.cancelled' }]);
});

test('no key gets around its budget, its fixed config or its end by the key that comes with an invite', async () => {
  const workspaceId = await makeWorkspace('ways around');
  const config = await ask('POST', '/configs', { name: 'fixed', config: { virtual_key: 'x' } });
  const organisation = '/api-keys/organisation/service';
  const fixed = { config_id: config.body['slug'], allow_config_override: false };
  const expires_at = new Date(Date.now() + 3_600_000).toISOString();
  const bound = {
    limited_key: { usage_limits: { credit_limit: 1 } },
    config_override_not_allowed: { defaults: fixed },
    outlives_its_maker: { expires_at },
  };
  const person = { role: 'member', workspaces: [{ id: workspaceId, role: 'member' }] };
  const withKey = { ...person, workspace_api_key_details: { scopes: ['chat.write'] } };
  const pending = await ask('POST', '/admin/users/invites', { email: 'pending@example.org', ...withKey });
  for (const [code, settings] of Object.entries(bound)) {
    const { body } = await ask('POST', organisation, { name: code, scopes: null, ...settings });
    const refused = { status: 403, body: { error: { code } } };
    const email = `${code}@example.org`;
    expect(await ask('POST', '/admin/users/invites', { email, ...withKey }, body['key'])).toMatchObject(refused);
    const resend = `/admin/users/invites/${pending.body['id']}/resend`;
    expect(await ask('POST', resend, {}, body['key'])).toMatchObject(refused);
    expect((await ask('POST', '/admin/users/invites', { email, ...person }, body['key'])).status).toBe(200);
  }
});

test("an invite to somebody who is here already is no way to that person's key", async () => {
  const workspaceId = await makeWorkspace('impostors');
  const { id } = await join(ask, { role: 'admin' });
  const { body: admin } = await ask('POST', '/api-keys/workspace/user', {
    name: 'x',
    user_id: id,
    scopes: null,
    workspace_id: workspaceId,
  });
  const invite = (email: string, key?: string) =>
    ask(
      'POST',
      '/admin/users/invites',
      {
        email,
        role: 'member',
        workspaces: [{ id: workspaceId, role: 'admin' }],
        workspace_api_key_details: { scopes: ['users.read'] },
      },
      key,
    );
  const accept = (link: string | undefined) =>
    ask('POST', '/admin/users/invites/accept', { token: tokenOf(link) }, null);
  const code = 'key_of_other_user';
  expect(await invite('ada@example.org', admin['key'])).toMatchObject({ status: 403, body: { error: { code } } });
  // Or the person comes while the invite is open.
  const open = await invite('meanwhile@example.org', admin['key']);
  const newcomer = { email: 'meanwhile@example.org', subject: null, workspaceId, role: 'member' as const };
  const people = { usersMax: 1_000, membersMax: 1_000 };
  await welcomeUser({ eventLog: platform.api.platform.eventLog, people }, newcomer);
  expect(await accept(open.body['invite_link'])).toMatchObject({ status: 409, body: { error: { code } } });
  // The organisation itself may make keys of everybody.
  const made = await accept((await invite('ada@example.org')).body['invite_link']);
  expect(made).toMatchObject({ status: 200, body: { workspace_api_keys: [{ workspace_id: workspaceId }] } });
});

test('an invite ends with the key that made it, also when that expires', async () => {
  const maker = await ask('POST', '/api-keys/organisation/service', { name: 'soon', scopes: null });
  const made = await ask(
    'POST',
    '/admin/users/invites',
    { email: 'later@example.org', role: 'admin' },
    maker.body['key'],
  );
  expect(made.status).toBe(200);
  await ask('PUT', `/api-keys/${maker.body['id']}`, { expires_at: '2020-01-01T00:00:00Z' });
  const accept = { token: tokenOf(made.body['invite_link']) };
  expect(await ask('POST', '/admin/users/invites/accept', accept, null)).toMatchObject({
    status: 409,
    body: { error: { code: 'inviter_gone' } },
  });
});

describe('a link that a key of the organisation made', () => {
  type Ends = [what: string, change: (id: string) => Promise<unknown>, accepted: object];
  const rotate = (id: string, ms: number) => ask('POST', `/api-keys/${id}/rotate`, { key_transition_period_ms: ms });
  const change = (id: string, scopes: string[]) => ask('PUT', `/api-keys/${id}`, { scopes });
  const refused = (code: string) => ({ status: 409, body: { error: { code } } });
  const cases: Ends[] = [
    ['is cancelled by a rotation without transition', (id) => rotate(id, 0), refused('invite_cancelled')],
    ['works during the transition of a rotation', (id) => rotate(id, 3_600_000), { status: 200 }],
    [
      'ends when a second rotation ends the transition',
      async (id) => [await rotate(id, 3_600_000), await rotate(id, 0)],
      refused('invite_cancelled'),
    ],
    ['ends when the key may no longer invite', (id) => change(id, ['chat.write']), refused('inviter_gone')],
    ['ends when the key may no longer make admins', (id) => change(id, ['users.write']), refused('inviter_gone')],
    [
      'survives a change that leaves these rights',
      (id) => ask('PUT', `/api-keys/${id}`, { name: 'x' }),
      { status: 200 },
    ],
  ];
  const make = async (name: string, invite: (key: string, email: string) => Promise<unknown>) => {
    const email = `${createHash('sha256').update(name).digest('hex').slice(0, 12)}@example.org`;
    const { body: key } = await ask('POST', '/api-keys', { name, type: 'organisation-service' });
    return { id: key['id'] ?? '', email, link: tokenOf(String(await invite(key['key'] ?? '', email))) };
  };
  const byInvite = async (key: string, email: string) =>
    (await ask('POST', '/admin/users/invites', { email, role: 'admin' }, key)).body['invite_link'];
  const byResend = async (key: string, email: string) => {
    const { body } = await ask('POST', '/admin/users/invites', { email, role: 'admin' });
    return (await ask('POST', `/admin/users/invites/${body['id']}/resend`, {}, key)).body['invite_link'];
  };

  test.each(cases)('%s', async (what, end, expected) => {
    for (const invite of [byInvite, byResend]) {
      const { id, link } = await make(`${what} ${invite.name}`, invite);
      await end(id);
      const accepted = await ask('POST', '/admin/users/invites/accept', { token: link }, null);
      expect(accepted).toMatchObject(expected);
    }
  });

  test('is in the answer of the rotation, with the keys and users that the old value made', async () => {
    const { body: maker } = await ask('POST', '/api-keys', { name: 'stolen', type: 'organisation-service' });
    const { id = '', key = '' } = maker;
    const { body: made } = await ask('POST', '/api-keys', { name: 'made by it', type: 'organisation-service' }, key);
    const accepted = await ask('POST', '/admin/users/invites', { email: 'thief@example.org', role: 'admin' }, key);
    const user = await ask(
      'POST',
      '/admin/users/invites/accept',
      { token: tokenOf(accepted.body['invite_link']) },
      null,
    );
    const pending = await ask('POST', '/admin/users/invites', { email: 'second@example.org', role: 'admin' }, key);
    const { body: rotated } = await ask('POST', `/api-keys/${id}/rotate`, { key_transition_period_ms: 0 });
    expect(rotated['made_with_previous']).toEqual({
      api_keys: [{ id: made['id'], name: 'made by it', workspace_id: expect.any(String) as string }],
      users: [{ id: user.body['id'], email: 'thief@example.org' }],
      invites: [{ id: pending.body['id'], email: 'second@example.org', cancelled: true }],
      has_more: false,
    });
    // The new value has made nothing yet, and no answer shows a digest.
    const again = await ask('POST', `/api-keys/${id}/rotate`, { key_transition_period_ms: 0 });
    const none = { api_keys: [], users: [], invites: [], has_more: false };
    expect(again.body['made_with_previous']).toEqual(none);
    const replayed = await ask('GET', `/events/replay?stream=${made['id']}`);
    expect(replayed.body).toMatchObject({ state: { made_with: { id } } });
    const history = await ask('GET', `/events?stream=${id}`);
    for (const { data } of history.body.data as object[] as { data: object }[]) {
      expect(JSON.stringify(data)).not.toMatch(/[0-9a-f]{64}/);
    }
    expect(JSON.stringify(replayed.body)).not.toMatch(/[0-9a-f]{64}/);
  });
});

test('the metadata and the config of a workspace go under those of its keys', async () => {
  const workspaceId = await makeWorkspace('defaults');
  const metadata = { team: 'blue', region: 'eu' };
  const { body: full } = await ask('POST', '/api-keys', { name: 'full', workspace_id: workspaceId });
  const virtualKey = { name: 'usual', provider: 'simulator', custom_host: platform.simulatorUrl, key: 'k' };
  expect((await ask('POST', '/virtual-keys', virtualKey, full['key'])).status).toBe(200);
  const { body: config } = await ask('POST', '/configs', {
    name: 'usual',
    config: { virtual_key: 'usual' },
    workspace_id: workspaceId,
  });
  const put = await ask('PUT', '/admin/workspaces/defaults', { defaults: { metadata, user_api_key_config: 'usual' } });
  expect(put.body).toMatchObject({ defaults: { metadata, user_api_key_config: config['id'] } });
  expect(await ask('PUT', '/admin/workspaces/defaults', { defaults: { user_api_key_config: 'none' } })).toMatchObject({
    status: 400,
    body: { error: { code: 'config_not_found', param: 'defaults.user_api_key_config' } },
  });
  expect(await ask('PUT', '/admin/workspaces/defaults', { defaults: { input_guardrails: ['none'] } })).toMatchObject({
    status: 400,
    body: { error: { code: 'guardrail_not_found', param: 'defaults.input_guardrails' } },
  });
  const user = await join(ask, {
    workspaces: [{ id: workspaceId, role: 'member' }],
    scopes: ['chat.write', 'logs.read'],
  });
  const service = await ask('POST', '/api-keys', {
    name: 's',
    workspace_id: workspaceId,
    defaults: { metadata: { team: 'green' }, locked_metadata: { region: 'us' } },
  });
  const chat = { model: 'sim-small', messages: [{ role: 'user', content: 'Hi' }] };
  // Only the key of the user goes by the config, without which the call has no target.
  expect((await ask('POST', '/chat/completions', chat, user.key)).status).toBe(200);
  expect((await ask('POST', '/chat/completions', chat, service.body['key'])).status).toBe(404);
  const named = { ...chat, model: '@usual/sim-small' };
  expect((await ask('POST', '/chat/completions', named, service.body['key'])).status).toBe(200);
  const { pool } = platform.database;
  const text = "select metadata from request_log where workspace_id = $1 order by metadata ->> 'team'";
  const { rows } = await eventually(
    () => pool.query(text, [workspaceId]),
    (found) => found.rows.length === 2,
  );
  // The calls of the user's key name the user.
  const ofUser = { metadata: { ...metadata, _user: expect.stringMatching(/@example\.org$/) } };
  expect(rows).toEqual([ofUser, { metadata: { team: 'green', region: 'us' } }]);
});

test('a workspace has budgets and rates for all of its calls', async () => {
  const { body: made } = await ask('POST', '/admin/workspaces', {
    name: 'limited',
    usage_limits: [{ type: 'tokens', credit_limit: 1_000_000, periodic_reset: 'monthly' }],
    rate_limits: [{ type: 'requests', unit: 'rpd', value: 2 }],
  });
  expect(made).toMatchObject({
    usage_limits: [{ type: 'tokens', credit_limit: 1_000_000, periodic_reset: 'monthly' }],
    rate_limits: [{ type: 'requests', unit: 'rpd', value: 2 }],
  });
  const make = async (name: string) =>
    (await ask('POST', '/api-keys', { name, workspace_id: made['id'] })).body['key'] ?? '';
  const [one, other] = [await make('one'), await make('other')];
  const virtualKey = { name: 'sim', provider: 'simulator', custom_host: platform.simulatorUrl, key: 'k' };
  expect((await ask('POST', '/virtual-keys', virtualKey, one)).status).toBe(200);
  const chat = { model: '@sim/sim-small', max_tokens: 5, messages: [{ role: 'user', content: 'Hi' }] };
  const statuses = [];
  for (const key of [one, other, one]) statuses.push((await ask('POST', '/chat/completions', chat, key)).status);
  expect(statuses).toEqual([200, 200, 429]);
  await ask('PUT', '/admin/workspaces/limited', { rate_limits: null });
  expect((await ask('POST', '/chat/completions', chat, other)).status).toBe(200);
});

test('nobody gets hold of the key of another user', async () => {
  const workspaceId = await makeWorkspace('keys of users');
  const { body: full } = await ask('POST', '/api-keys', { name: 'full', workspace_id: workspaceId });
  const place = { workspaces: [{ id: workspaceId, role: 'manager' }], scopes: ['api_keys.read', 'api_keys.write'] };
  const one = await join(ask, place);
  const other = await join(ask, place);
  const make = (userId: string, key?: string) =>
    ask(
      'POST',
      '/api-keys/workspace/user',
      { name: 'k', user_id: userId, scopes: ['api_keys.read'], workspace_id: workspaceId },
      key,
    );
  const foreign = { status: 403, body: { error: { code: 'key_of_other_user' } } };
  expect(await make(one.id, full['key'])).toMatchObject(foreign);
  expect(await make(one.id, other.key)).toMatchObject(foreign);
  const made = await make(one.id, one.key);
  expect(made).toMatchObject({ status: 200, body: { type: 'workspace-user', user_id: one.id } });
  expect(await ask('POST', `/api-keys/${made.body['id']}/rotate`, {}, other.key)).toMatchObject(foreign);
  expect(await ask('PUT', `/api-keys/${made.body['id']}`, { name: 'x' }, full['key'])).toMatchObject(foreign);
  expect((await make(one.id)).status).toBe(200);
  expect((await ask('GET', '/api-keys', undefined, made.body['key'])).status).toBe(200);
});

test('the activity of memberships stands in their workspace, that of users in the organisation', async () => {
  const workspaceId = await makeWorkspace('audited');
  const { id } = await join(ask, { workspaces: [{ id: workspaceId, role: 'member' }] });
  const { body: full } = await ask('POST', '/api-keys', { name: 'full', workspace_id: workspaceId });
  const worker = await platform.startWorker();
  const read = async (place: string, key?: string) =>
    (await ask('GET', `/audit-logs?resource_id=${id}&workspace_id=${place}`, undefined, key)).body;
  const found = await eventually(
    async () => ({ own: await read(workspaceId, full['key']), organisation: await read('org_default') }),
    ({ own, organisation }) => [own, organisation].every(({ records }) => records.length === 1),
  );
  expect(found.own).toMatchObject({ records: [{ action: 'workspace_joined', user_type: 'system' }] });
  expect(found.organisation).toMatchObject({ records: [{ action: 'created', uri: '/v1/admin/users/invites/accept' }] });
  expect(await read('org_default', full['key'])).toMatchObject({ error: { code: 'workspace_not_found' } });
  await worker.stop();
});

test('there are at most so many users, invites and members', async () => {
  const small = {
    SLUICE_USERS_MAX: '3',
    SLUICE_INVITES_MAX: '2',
    SLUICE_MEMBERS_MAX: '1',
    SLUICE_WRONG_KEYS_PER_MINUTE: '2',
  };
  const bounded = await startPlatform({ worker: false, environment: small });
  try {
    const request = asker(bounded);
    const invite = (name: string) =>
      request('POST', '/admin/users/invites', { email: `${name}@example.org`, role: 'member' });
    const accept = (token: string) => request('POST', '/admin/users/invites/accept', { token }, null);
    const tokens: string[] = [];
    for (const name of ['a', 'b']) tokens.push(tokenOf((await invite(name)).body['invite_link']));
    expect(await invite('c')).toMatchObject({ status: 429, body: { error: { code: 'too_many_invites' } } });
    const users = [];
    for (const token of tokens) users.push((await accept(token)).body['id']);
    const third = await invite('c');
    expect(await accept(tokenOf(third.body['invite_link']))).toMatchObject({
      status: 429,
      body: { error: { code: 'too_many_users' } },
    });
    const named = (ids: unknown[]) => ({ name: 'w', users: ids });
    expect(await request('POST', '/admin/workspaces', named(users))).toMatchObject({
      status: 429,
      body: { error: { code: 'too_many_members' } },
    });
    expect((await request('GET', '/admin/workspaces?exact_name=w')).body).toMatchObject({ total: 0 });
    expect((await request('POST', '/admin/workspaces', named([users[0]]))).status).toBe(200);

    // Who guesses tokens is slowed as who guesses keys.
    const guesses = [];
    for (const guess of ['x', 'y', 'z']) guesses.push((await accept(guess)).status);
    expect(guesses).toEqual([404, 404, 429]);
  } finally {
    await bounded.stop();
  }
});

test('a rebuild gives the same users, invites and memberships', async () => {
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toBeNull();
});
