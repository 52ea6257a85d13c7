import { expect, test } from 'vitest';
import '#libs/resources/resource-kinds.ts';
import { scopes } from '#libs/contracts/people/api-keys.ts';
import { getRoleScopes, scopesWithin, getWorkspaceRole } from './roles.ts';

const has = (role: 'admin' | 'manager' | 'member', scope: string): boolean => {
  const held = getRoleScopes(role);
  return held === 'all' || held.has(scope);
};

test.each([
  ['chat.write', true, true],
  ['batches.write', true, true],
  ['responses.write', true, true],
  ['configs.read', true, true],
  ['configs.write', true, false],
  ['virtual_keys.write', true, false],
  ['api_keys.read', true, false],
  ['members.read', true, true],
  ['members.write', true, false],
  ['audit.read', true, false],
  ['workspaces.read', true, true],
  ['workspaces.write', false, false],
  ['users.read', false, false],
  ['bodies.read', false, false],
])('%s: an admin has it; a manager: %s; a member: %s', (scope, manager, member) => {
  expect([has('admin', scope), has('manager', scope), has('member', scope)]).toEqual([true, manager, member]);
});

test('each role has all rights of the one below it', () => {
  const member = getRoleScopes('member');
  const manager = getRoleScopes('manager');
  if (member === 'all' || manager === 'all') throw new Error('only an admin has all rights');
  expect(member.isSubsetOf(manager)).toBe(true);
  expect(manager.size).toBeLessThan(scopes.length);
});

test('an auditor has every scope that reads, and no other', () => {
  const auditor = getRoleScopes('auditor');
  expect(auditor).toEqual(new Set(scopes.filter((scope) => scope.endsWith('.read'))));
  expect([...(auditor as ReadonlySet<string>)]).toEqual(
    expect.arrayContaining(['audit.read', 'bodies.read', 'logs.read']),
  );
});

test("a user's key may do what both the key and the role allow", () => {
  expect(scopesWithin('admin', 'all')).toBe('all');
  expect(scopesWithin('admin', new Set(['logs.read']))).toEqual(new Set(['logs.read']));
  expect(scopesWithin('member', 'all')).toBe(getRoleScopes('member'));
  expect(scopesWithin('member', new Set(['chat.write', 'configs.write']))).toEqual(new Set(['chat.write']));
});

test('owners and admins of the organisation are admins of every workspace, members only of those that they belong to', () => {
  const memberships = new Map([['ws_1', 'manager']] as const);
  expect(getWorkspaceRole({ id: 'u', email: 'u@example.com', role: 'owner', memberships: new Map() }, 'ws_2')).toBe(
    'admin',
  );
  expect(getWorkspaceRole({ id: 'u', email: 'u@example.com', role: 'admin', memberships }, 'ws_1')).toBe('admin');
  expect(getWorkspaceRole({ id: 'u', email: 'u@example.com', role: 'member', memberships }, 'ws_1')).toBe('manager');
  expect(getWorkspaceRole({ id: 'u', email: 'u@example.com', role: 'member', memberships }, 'ws_2')).toBeNull();
});
