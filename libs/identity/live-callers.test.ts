import { expect, test } from 'vitest';
import { allowedNetworks } from '#libs/http/allowed-networks.ts';
import type { LiveApiKey } from './authenticate.ts';
import { liveKeys, type KeyDefaults, type KeySources } from './live-callers.ts';
import type { LiveUser } from '../http/roles.ts';

const keyOf = (type: 'user' | 'service_key', id: string): LiveApiKey => ({
  caller: {
    workspaceId: 'ws_1',
    keyId: `key_${id}`,
    principal: { type, id, role: null },
    scopes: 'all',
    defaults: { configId: null, allowsConfigOverride: true, metadata: { team: 'own' } },
    expiresAtMs: Number.POSITIVE_INFINITY,
  },
  expiresAtMs: Number.POSITIVE_INFINITY,
});
const userOf = (id: string, role: 'member' | 'manager'): LiveUser => ({
  id,
  email: `${id}@example.com`,
  role: 'member',
  memberships: new Map([['ws_1', role]]),
});

const service = keyOf('service_key', 's');
const [ada, bob] = [keyOf('user', 'ada'), keyOf('user', 'bob')];
const sources: KeySources = {
  keys: new Map([
    ['s', service],
    ['a', ada],
    ['b', bob],
  ]),
  workspaces: new Map([['ws_1', { defaults: null }]]),
  users: new Map([
    ['ada', userOf('ada', 'member')],
    ['bob', userOf('bob', 'member')],
  ]),
};

test('a change makes new callers for those whom it concerns, and for nobody else', () => {
  const first = liveKeys(sources, null);
  expect(first.byDigest.get('s')).toBe(service);
  expect(liveKeys({ ...sources }, first)).toBe(first);
  const users = new Map([...sources.users, ['ada', userOf('ada', 'manager')]]);
  const second = liveKeys({ ...sources, users }, first);
  expect(second.byDigest.get('b')).toBe(first.byDigest.get('b'));
  expect(second.byDigest.get('a')?.caller.principal).toMatchObject({ role: 'manager', organisationRole: 'member' });
  const third = liveKeys({ ...sources, users: new Map([...users].slice(0, 1)) }, second);
  expect([...third.byDigest.keys()]).toEqual(['s', 'a']);
  // A key that comes back is found again.
  expect([...liveKeys(sources, third).byDigest.keys()]).toEqual(['s', 'a', 'b']);

  const defaults = { metadata: { team: 'all', region: 'eu' }, userConfigId: 'config_1' };
  const fourth = liveKeys({ ...sources, workspaces: new Map([['ws_1', { defaults }]]) }, first);
  expect(fourth.byDigest.get('s')?.caller.defaults).toEqual({
    configId: null,
    allowsConfigOverride: true,
    metadata: { team: 'own', region: 'eu' },
  });
  expect(fourth.byDigest.get('a')?.caller.defaults).toMatchObject({ configId: 'config_1' });
});

const withWorkspace = (defaults: KeyDefaults | null, id: string, keys = sources.keys) =>
  liveKeys({ ...sources, keys, workspaces: new Map([['ws_1', { defaults }]]) }, null).byDigest.get(id)?.caller.defaults;

test("the calls of a user's key always name the user", () => {
  const everybody = { metadata: { _user: 'a' }, lockedMetadata: { _user: 'b' }, userConfigId: null };
  expect(withWorkspace(null, 's')?.lockedMetadata).toBeUndefined();
  expect(withWorkspace(null, 'a')?.lockedMetadata).toEqual({ _user: 'ada@example.com' });
  expect(withWorkspace(everybody, 'a')?.lockedMetadata).toEqual({ _user: 'ada@example.com' });
  expect(withWorkspace(everybody, 's')?.lockedMetadata).toEqual({ _user: 'b' });
});

test('metadata that the workspace locks replaces what the key locks', () => {
  const defaults = { ...service.caller.defaults, lockedMetadata: { team: 'key', cost_center: '7' } };
  const key = { ...service, caller: { ...service.caller, defaults } };
  const locking = { metadata: null, lockedMetadata: { team: 'workspace' }, userConfigId: null };
  const found = withWorkspace(locking, 's', new Map([['s', key]]));
  expect(found?.lockedMetadata).toEqual({ team: 'workspace', cost_center: '7' });
});

test('the networks of a workspace are added to those of its keys, but not to keys of the organisation', () => {
  const texts = (key: LiveApiKey | undefined) => key?.caller.networks?.map((networks) => networks.texts[0]);
  const pinned = allowedNetworks('API key', ['192.0.2.0/24']);
  const ofWorkspace = allowedNetworks('workspace', ['10.0.0.0/8']);
  if (pinned === null || ofWorkspace === null) throw new Error('both are lists');
  const organisation = {
    ...service,
    caller: { ...service.caller, principal: { ...service.caller.principal, type: 'organisation_key' as const } },
  };
  const { byDigest } = liveKeys(
    {
      ...sources,
      keys: new Map([
        ...sources.keys,
        ['o', organisation],
        ['p', { ...service, caller: { ...service.caller, networks: [pinned] } }],
      ]),
      workspaces: new Map([['ws_1', { defaults: { metadata: null, userConfigId: null, networks: ofWorkspace } }]]),
    },
    null,
  );
  expect(['s', 'a', 'p', 'o'].map((digest) => texts(byDigest.get(digest)))).toEqual([
    ['10.0.0.0/8'],
    ['10.0.0.0/8'],
    ['192.0.2.0/24', '10.0.0.0/8'],
    undefined,
  ]);
});
