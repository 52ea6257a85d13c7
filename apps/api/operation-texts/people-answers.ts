import { recordOf } from './example-records.ts';

const time = '2026-11-23T12:00:00.000Z';
const memberOf = (role: 'member' | 'manager') => ({
  id: 'user_abc',
  object: 'workspace-user',
  first_name: 'Ada',
  last_name: 'Lovelace',
  email: 'ada@example.com',
  org_role: 'member',
  role,
  status: 'active',
  workspace_id: 'ws_abc',
  scopes: ['chat.read', 'chat.write', 'batches.read', 'batches.write'],
  settings: null,
  created_at: time,
  last_updated_at: time,
});
const members = {
  object: 'list',
  data: [memberOf('member')],
  first_id: 'user_abc',
  last_id: 'user_abc',
  has_more: false,
  total: 1,
};
const link = 'https://sluice.example.com/v1/admin/users/invites/accept#token=inv_…';

/** Answers of members, invites and keys beyond those that every kind of record has. */
export const peopleAnswers: Readonly<Record<string, object>> = {
  addMembers: members,
  listMembers: members,
  retrieveMember: memberOf('member'),
  updateMember: memberOf('manager'),
  removeMember: {
    id: 'user_abc',
    object: 'workspace-user',
    workspace_id: 'ws_abc',
    deleted: true,
    service_keys: [],
    has_more_service_keys: false,
  },
  resendInvite: { ...recordOf('invite'), invite_link: link, inviteLink: link },
  cancelInvite: { ...recordOf('invite'), status: 'cancelled', deleted: true },
  acceptInvite: { ...recordOf('user'), workspace_api_keys: [] },
  createApiKeyOfType: { ...recordOf('api_key'), key: 'slk_…', scopes: ['chat.write'] },
  rotateApiKey: {
    id: 'key_abc',
    object: 'api-key',
    key: 'slk_…',
    key_transition_expires_at: time,
    made_with_previous: { api_keys: [], users: [], invites: [], has_more: false },
  },
  reportLeakedApiKey: { object: 'leaked-key-report', status: 'accepted' },
};
