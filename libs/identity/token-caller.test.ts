import { expect, test } from 'vitest';
import { getRoleScopes, type LiveUser } from '../http/roles.ts';
import { tokenCaller, type People } from './token-caller.ts';
import type { TokenIdentity } from './token-sign-in.ts';

const users: Record<string, LiveUser> = {
  mara: { id: 'user_mara', email: 'mara@example.com', role: 'member', memberships: new Map([['ws_1', 'manager']]) },
  both: {
    id: 'user_both',
    email: 'both@example.com',
    role: 'member',
    memberships: new Map([
      ['ws_1', 'member'],
      ['ws_2', 'admin'],
    ]),
  },
  alone: { id: 'user_alone', email: 'alone@example.com', role: 'member', memberships: new Map() },
  owner: { id: 'user_owner', email: 'owner@example.com', role: 'owner', memberships: new Map() },
};
const workspaces: Record<string, string> = { ws_1: 'ws_1', search: 'ws_1', ws_2: 'ws_2' };
const people: People = {
  findUser: (name) => users[name],
  findWorkspace: (name) => workspaces[name],
  onlyWorkspace: () => undefined,
  defaultsOf: () => null,
};
const getCaller = (own: Partial<TokenIdentity>, known = people) =>
  tokenCaller(known, { user: 'mara', workspace: null, email: null, roles: null, scopes: null, ...own });

test('a user acts with the role in the workspace of the token, or in the only one', () => {
  const expected = {
    workspaceId: 'ws_1',
    keyId: 'user_mara',
    principal: { type: 'user', id: 'user_mara', role: 'manager', organisationRole: 'member' },
    scopes: getRoleScopes('manager'),
  };
  expect(getCaller({})).toMatchObject(expected);
  expect(getCaller({ workspace: 'search' })).toMatchObject(expected);
  expect(getCaller({ user: 'both', workspace: 'ws_2' })).toMatchObject({ workspaceId: 'ws_2', scopes: 'all' });
});

test.each([
  ['nobody', { user: 'nobody' }, 'unknown_user'],
  ["another's workspace", { workspace: 'ws_2' }, 'workspace_not_allowed'],
  ['no workspace that exists', { workspace: 'ws_9' }, 'workspace_not_allowed'],
  ['a user of several workspaces, without naming one', { user: 'both' }, 'workspace_required'],
  ['a user of none', { user: 'alone' }, 'workspace_required'],
  ['an owner, without naming one of several workspaces', { user: 'owner' }, 'workspace_required'],
])('a token of %s is refused', (_what, own, code) => {
  expect(() => getCaller(own)).toThrow(expect.objectContaining({ kind: 'forbidden', code }));
});

test('an owner acts in the only workspace there is, and a user of none does not', () => {
  const known = { ...people, onlyWorkspace: () => 'ws_1' };
  expect(getCaller({ user: 'owner' }, known)).toMatchObject({
    workspaceId: 'ws_1',
    principal: { role: 'admin', organisationRole: 'owner' },
    scopes: 'all',
  });
  expect(() => getCaller({ user: 'alone' }, known)).toThrow(expect.objectContaining({ code: 'workspace_not_allowed' }));
});

test.each([
  [['admin'], 'manager'],
  [['member'], 'member'],
  [['manager', 'member'], 'manager'],
  [['viewer'], 'member'],
  [[], 'member'],
])('a token with the roles %j lets a manager act as %s', (roles, role) => {
  expect(getCaller({ roles })).toMatchObject({ principal: { role }, scopes: getRoleScopes(role as 'member') });
});

test('an owner with a token of a member does not act for the organisation', () => {
  const caller = getCaller({ user: 'owner', workspace: 'ws_1', roles: ['member'] });
  expect(caller).toMatchObject({ principal: { role: 'member', organisationRole: 'member' } });
});

test('the scopes of a token take rights away and add none', () => {
  expect(getCaller({ scopes: new Set(['chat.write', 'audit.write']) }).scopes).toEqual(new Set(['chat.write']));
  expect(getCaller({ scopes: new Set() }).scopes).toEqual(new Set());
  const owner = getCaller({ user: 'owner', workspace: 'ws_1', scopes: new Set(['chat.write']) });
  expect(owner.scopes).toEqual(new Set(['chat.write']));
});
