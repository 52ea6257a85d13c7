import type { OperationTexts } from '#libs/http/openapi.ts';

const memberErrors = {
  higher_role: 'the role may do more than the key of the request',
  too_many_members: 'the workspace has as many members as it may have',
};
const madeKeysErrors = {
  insufficient_scope: '`revoke_keys`: a service key may do more than the key of the request',
  missing_scope: '`revoke_keys`: the key of the request lacks `api_keys.write`',
  too_many_keys: '`revoke_keys`: the user made more service keys than one request revokes',
};
const keyErrors = {
  insufficient_scope: 'the key of the request lacks a right that it would give',
  outlives_its_maker: 'it would end later than the key of the request',
  limited_key: 'the key of the request has limits, which the new one would not have',
};

const endedInvite = {
  invite_not_found: 'there is none with this id',
  invite_accepted: 'somebody accepted it',
  invite_cancelled: 'it was cancelled',
};

/** Workspaces, people and keys. */
export const peopleTexts: OperationTexts = {
  createWorkspace: {
    description: 'It has nothing of others. `users` become its first members.',
    example: { name: 'Search', defaults: { metadata: { department: 'search' } } },
  },
  updateWorkspace: {
    description:
      'Defaults, budgets and rates hold for all its calls from then on. Members of `defaults` that are left out stay.',
    example: { usage_limits: [{ type: 'cost', credit_limit: 100_000, periodic_reset: 'monthly' }] },
  },
  deleteWorkspace: {
    description:
      'Its keys end, its batches are cancelled and what was recorded of its calls is deleted; its events stay.',
    errors: { own_workspace: 'the key of the request is of this workspace' },
  },
  addMembers: {
    description: 'Up to 100 at once, all or none. Users are added at once; other people are invited.',
    example: { users: [{ id: 'user_abc', role: 'member' }] },
    errors: {
      workspace_not_found: 'the key sees no such workspace',
      user_not_found: 'there is no such user with whom a workspace is shared',
      members_changed: 'others changed the members at the same time: send it again',
      ...memberErrors,
    },
  },
  listMembers: { description: 'With the role and the scopes of each in this workspace.' },
  retrieveMember: {
    description: 'With the role and the scopes in this workspace.',
    errors: { member_not_found: 'the user is no member' },
  },
  updateMember: {
    description: 'Keys of the user follow the role from the next request on.',
    example: { role: 'manager' },
    errors: { member_not_found: 'the user is no member', ...memberErrors },
  },
  removeMember: {
    description:
      'Keys that the user has in the workspace are revoked. `service_keys` are those that the user made: they go on working unless `revoke_keys` is true.',
    errors: {
      ...madeKeysErrors,
      member_not_found: 'the user is no member',
      higher_role: 'the member may do more than the key of the request',
    },
  },
  updateUser: {
    description:
      'The name, or the role in the organisation. Keys of the user follow the role from the next request on.',
    example: { role: 'admin' },
    errors: { last_owner: 'there must be an owner', higher_role: 'the role may do more than the key of the request' },
  },
  deleteUser: {
    description:
      'The memberships end and the keys of the user are revoked; what the user did stays in the log. `service_keys` are those that the user made: they go on working unless `revoke_keys` is true.',
    errors: {
      ...madeKeysErrors,
      last_owner: 'there must be an owner',
      higher_role: 'the user may do more than the key of the request',
    },
  },
  createInvite: {
    description: 'The answer has a link with a token that works once and expires; Sluice sends no mail.',
    example: { email: 'ada@example.com', role: 'member', workspaces: [{ id: 'ws_abc', role: 'member' }] },
    errors: {
      invite_pending: 'the address has one already: resend that',
      too_many_invites: 'as many are pending as may be',
      higher_role: 'the role may do more than the key of the request',
      insufficient_scope: keyErrors.insufficient_scope,
    },
  },
  listInvites: { description: 'Without their tokens. An invite that nobody accepted in time is `expired`.' },
  cancelInvite: { description: 'Nobody can accept it any more.', errors: endedInvite },
  resendInvite: {
    description: 'The new link is in this answer alone, and the one before ends. The time of the invite begins anew.',
    errors: {
      ...endedInvite,
      higher_role: 'the role may do more than the key of the request',
      insufficient_scope: keyErrors.insufficient_scope,
    },
  },
  reportLeakedApiKey: {
    description:
      'For scanners of secrets and people who find a key. The whole value is the proof. A known key is revoked within a second; of a rotated key an earlier value ends alone. The answer is the same for unknown keys.',
    example: { key: 'slk_…', url: 'https://git.example/project/commit/1' },
    errors: { invalid_value: 'the value is not a whole API key of Sluice' },
  },
  acceptInvite: {
    description:
      'Makes the user, or adds the workspaces to one who has this address. Keys that the invite has are in this answer alone.',
    example: { token: 'inv_…', first_name: 'Ada', last_name: 'Lovelace' },
    errors: {
      ...endedInvite,
      invite_not_found: 'no invite has this token',
      invite_expired: 'its time is over: ask for another one',
      too_many_users: 'the organisation has as many users as it may have',
      too_many_members: 'a workspace of it has as many members as it may have',
      user_changing: 'the user with this address is being changed: send it again',
      inviter_gone: 'whoever made it may not do that any more',
      key_of_other_user: 'the invite has keys, and the address is of somebody who is a user already',
    },
  },
  showInvite: { description: 'A page for people. Opening it changes nothing.' },
  submitInvite: {
    description: 'What the button of the page sends; it answers with a page.',
    example: { token: 'inv_…', first_name: 'Ada', last_name: 'Lovelace' },
    errors: { invalid_form: 'it lacks a field' },
  },
  createApiKey: {
    description: 'The value is in this answer alone. `scopes` may be none that the key of the request lacks.',
    example: { name: 'search service', scopes: ['chat.write', 'batches.write', 'batches.read'] },
    errors: { ...keyErrors, user_not_found: '`user_id` names nobody of this workspace' },
  },
  createApiKeyOfType: {
    description:
      'Like `POST /v1/api-keys` with `type`, but `scopes` is required. An organisation key acts in every workspace.',
    example: { name: 'search service', workspace_id: 'ws_abc', scopes: ['chat.write'] },
    errors: { ...keyErrors, organisation_key_required: 'only those who act for the organisation make its keys' },
  },
  updateApiKey: {
    description: 'Its value stays. Every process uses the change within about a second.',
    example: { name: 'search service', rate_limits: [{ type: 'requests', unit: 'rpm', value: 600 }] },
    errors: keyErrors,
  },
  deleteApiKey: { description: 'Running processes refuse it within a second. Its records in the log stay.' },
  rotateApiKey: {
    description:
      'The new value is in this answer alone. The previous one works until the transition time has passed; 0 ends it immediately. ' +
      '`made_with_previous` lists what the earlier values made. With 0, pending invites among them are cancelled; otherwise their ' +
      'links stop working at the end of the transition.',
    example: { key_transition_period_ms: 3_600_000 },
    errors: {
      too_many_rotations: 'earlier values still work',
      insufficient_scope: 'the key may do more than that of the request',
    },
  },
};
