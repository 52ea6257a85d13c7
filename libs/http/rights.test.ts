import { expect, test } from 'vitest';
import { allowedNetworks } from './allowed-networks.ts';
import type { Principal } from './caller.ts';
import {
  actsForOrganisation,
  controlsKeysOf,
  hasEveryScope,
  hasScope,
  reachesEveryWorkspace,
  refuseForeignOrganisation,
  refuseHigherOrganisationRole,
  refuseHigherWorkspaceRole,
  refuseMoreRights,
  refuseStronger,
  requireOrganisation,
  requireScope,
  type KeyRights,
} from './rights.ts';
import { getRoleScopes } from './roles.ts';

const user = (organisationRole: string): Principal => ({ type: 'user', id: 'u', role: 'admin', organisationRole });
const organisationKey: Principal = { type: 'organisation_key', id: 'k', role: null };
const serviceKey: Principal = { type: 'service_key', id: 'k', role: null };
const as = (principal: Principal) => ({ principal, scopes: 'all' as const });
const refusal = (code: string) => expect.objectContaining({ kind: 'forbidden', code });

test('a key has the scopes of its list, and a key without a list has all of them', () => {
  const caller = { scopes: new Set(['logs.read']) };
  expect([hasScope(caller, 'logs.read'), hasScope(caller, 'logs.write'), hasEveryScope(caller)]).toEqual([
    true,
    false,
    false,
  ]);
  expect([hasScope({ scopes: 'all' }, 'logs.write'), hasEveryScope({ scopes: 'all' })]).toEqual([true, true]);
  expect(() => requireScope(caller, 'logs.write')).toThrow(refusal('missing_scope'));
});

test.each([
  ['a key of the organisation', organisationKey, true, true, true],
  ['the key of an owner', user('owner'), true, false, false],
  ['the key of an admin', user('admin'), true, false, false],
  ['the key of a member', user('member'), false, false, false],
  ['a service key', serviceKey, false, false, false],
])(
  '%s: acts for the organisation, reaches every workspace, controls keys of others',
  (_who, principal, ...expected) => {
    const caller = as(principal);
    const found = [actsForOrganisation(caller), reachesEveryWorkspace(caller), controlsKeysOf(caller, 'other')];
    expect(found).toEqual(expected);
    expect(controlsKeysOf(caller, 'u')).toBe(principal !== serviceKey);
  },
);

test('only a caller that acts for the organisation passes the check for it', () => {
  expect(() => requireOrganisation(as(user('owner')), 'do this')).not.toThrow();
  expect(() => requireOrganisation(as(serviceKey), 'do this')).toThrow(refusal('organisation_key_required'));
});

test('another organisation than that of the installation is not found', () => {
  expect(() => refuseForeignOrganisation('org_default')).not.toThrow();
  expect(() => refuseForeignOrganisation('org_other')).toThrow(expect.objectContaining({ kind: 'not_found' }));
});

test('nobody can give or take away a role that may do more than their own', () => {
  const higher = refusal('higher_role');
  const manager = { principal: user('member'), scopes: getRoleScopes('manager') };
  expect(() => refuseHigherWorkspaceRole(manager, 'admin')).toThrow(higher);
  expect(() => refuseHigherWorkspaceRole(manager, 'manager')).not.toThrow();
  expect(() => refuseHigherWorkspaceRole(as(serviceKey), 'admin')).not.toThrow();
  const onlyMembers = { principal: organisationKey, scopes: new Set(['members.write']) };
  expect(() => refuseHigherWorkspaceRole(onlyMembers, 'member')).toThrow(higher);

  expect(() => refuseHigherOrganisationRole(as(user('admin')), 'owner')).toThrow(higher);
  expect(() => refuseHigherOrganisationRole(as(user('admin')), 'admin')).not.toThrow();
  expect(() => refuseHigherOrganisationRole(as(user('owner')), 'owner')).not.toThrow();
  expect(() => refuseHigherOrganisationRole(as(organisationKey), 'owner')).not.toThrow();
  const scoped = { principal: organisationKey, scopes: new Set(['users.write']) };
  expect(() => refuseHigherOrganisationRole(scoped, 'admin')).toThrow(higher);
  expect(() => refuseHigherOrganisationRole(scoped, 'member')).not.toThrow();
});

const networks = allowedNetworks('API key', ['10.0.0.0/8']);
const limited: KeyRights = {
  principal: serviceKey,
  scopes: new Set(['logs.read']),
  defaults: { configId: 'cfg_1', allowsConfigOverride: false, metadata: null },
  expiresAtMs: Number.POSITIVE_INFINITY,
  ...(networks && { networks: [networks] }),
};
const equal = {
  id: 'key_1',
  scopes: ['logs.read'],
  defaults: { config_id: 'cfg_1', allow_config_override: false as const },
  allowed_networks: ['10.1.0.0/16'],
};

test.each([
  ['more scopes', { scopes: ['logs.read', 'logs.write'] }, 'insufficient_scope'],
  ['all scopes', { scopes: null }, 'insufficient_scope'],
  ['other networks', { allowed_networks: null }, 'network_not_allowed'],
  ['a free config', { defaults: {} }, 'config_override_not_allowed'],
  ['the rights of the organisation', { type: 'organisation-service' as const }, 'organisation_key_required'],
])('a key neither creates nor revokes one with %s', (_what, more, code) => {
  expect(() => refuseMoreRights(limited, { ...equal, ...more })).toThrow(refusal(code));
  expect(() => refuseStronger(limited, { ...equal, ...more }, 'revoke')).toThrow(refusal('insufficient_scope'));
});

test('a key creates and revokes one with the same rights, but does not change the key of a user', () => {
  expect(() => refuseMoreRights(limited, equal)).not.toThrow();
  expect(() => refuseStronger(limited, { ...equal, user_id: 'u' }, 'revoke')).not.toThrow();
  expect(() => refuseStronger(limited, { ...equal, user_id: 'u' }, 'change')).toThrow(refusal('key_of_other_user'));
});
