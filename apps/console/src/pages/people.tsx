import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api, send } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { dateTime } from '../format.ts';
import { Ago, AsCurl, Badge, Card, Empty, Id, PageHead, Shown } from '../parts/basics.tsx';
import { Confirmed, FormDialog, useChange } from '../parts/changes.tsx';
import { RecordTable } from '../parts/table.tsx';
import { useActsForOrganisation, useMay, useSession } from '../session.tsx';

type User = Answer<'/v1/admin/users'>['data'][number];
type Member = Omit<Answer<'/v1/admin/workspaces/{workspaceId}/users'>['data'][number], 'settings'>;
type Invite = Answer<'/v1/admin/users/invites'>['data'][number];
type Workspace = Pick<Answer<'/v1/admin/workspaces'>['data'][number], 'usage_limits' | 'rate_limits'>;
type Role = Member['role'];

const nameOf = ({
  first_name: first,
  last_name: last,
  email,
}: Pick<User, 'first_name' | 'last_name' | 'email'>): string => `${first} ${last}`.trim() || email;

/** The people of the organisation with their rights, the members of this workspace, invites, and the workspaces. */
export function People() {
  const mayReadUsers = [useMay('users.read'), useActsForOrganisation()].every(Boolean);
  const mayReadMembers = useMay('members.read');
  return (
    <div className="stack">
      <PageHead
        title="People and workspaces"
        text="A workspace owns its batches, keys and records and cannot see those of others. People are members of workspaces, with a role in each."
      />
      {mayReadMembers ? <Members /> : null}
      {mayReadUsers ? <Invites /> : null}
      {mayReadUsers ? <Users /> : null}
      <Workspaces />
      <AsCurl path="/v1/admin/users" />
    </div>
  );
}

const roleTexts: Record<Role, string> = {
  admin: 'admin: full access to the workspace',
  manager: 'manager: everything except people and enforced guardrails',
  member: 'member: calls, batches and prompts',
  auditor: 'auditor: reads everything, changes nothing',
};

const RoleSelect = ({ value, label, onChange }: { value: Role; label: string; onChange: (role: Role) => void }) => (
  <select aria-label={label} value={value} onChange={(event) => onChange(event.target.value as Role)}>
    {Object.entries(roleTexts).map(([role, text]) => (
      <option key={role} value={role}>
        {text}
      </option>
    ))}
  </select>
);

function Members() {
  const { workspace } = useSession();
  const members = useQuery({
    queryKey: ['user', 'list', 'members'],
    queryFn: () =>
      allPages((query) =>
        answerOf(
          api.GET('/v1/admin/workspaces/{workspaceId}/users', {
            params: { path: { workspaceId: workspace.id }, query },
          }),
        ),
      ),
  });
  const mayWrite = useMay('members.write');
  return (
    <Card title={`Members of ${workspace.name}`} flush aside={mayWrite ? <AddMember /> : null}>
      <Shown query={members}>
        {({ data, total }) =>
          data.length === 0 ? (
            <Empty title="No members yet">
              <p>Owners and admins of the organisation have full access without being members.</p>
            </Empty>
          ) : (
            <RecordTable
              label="Members"
              total={total}
              textOf={(member) => `${nameOf(member)} ${member.email} ${member.role}`}
              rows={data}
              keyOf={({ id }) => id}
              columns={[
                { head: 'Name', isLong: true, cell: nameOf },
                { head: 'E-mail', isLong: true, cell: ({ email }) => email },
                { head: 'Workspace role', cell: (member) => (mayWrite ? <MemberRole member={member} /> : member.role) },
                { head: 'In the organisation', cell: ({ org_role: role }) => role },
                { head: 'Actions', cell: (member) => (mayWrite ? <RemoveMember member={member} /> : null) },
              ]}
            />
          )
        }
      </Shown>
    </Card>
  );
}

function MemberRole({ member: { id, role, workspace_id: workspaceId, email } }: { member: Member }) {
  const change = useChange(['user'], (next: Role) =>
    answerOf(
      api.PUT('/v1/admin/workspaces/{workspaceId}/users/{userId}', {
        params: { path: { workspaceId, userId: id } },
        body: { role: next },
      }),
    ),
  );
  return (
    <div>
      <RoleSelect
        value={change.variables ?? role}
        label={`Role of ${email}`}
        onChange={(next) => change.mutate(next)}
      />
      {change.error === null ? null : (
        <div className="small" role="alert">
          {change.error.message}
        </div>
      )}
    </div>
  );
}

function RemoveMember({ member: { id, email, workspace_id: workspaceId } }: { member: Member }) {
  const { workspace } = useSession();
  const [revokes, setRevokes] = useState(false);
  const act = useChange<void, unknown>(['user', 'api_key'], () =>
    answerOf(
      api.DELETE('/v1/admin/workspaces/{workspaceId}/users/{userId}', {
        params: { path: { workspaceId, userId: id }, query: { revoke_keys: revokes ? 'true' : 'false' } },
      }),
    ),
  );
  return (
    <Confirmed text="Remove" question={`Remove ${email} from ${workspace.name}?`} act={act}>
      Their keys for this workspace stop working within a second. They remain a user of the organisation.
      <MadeKeys userId={id} where="here" revokes={revokes} onChange={setRevokes} />
    </Confirmed>
  );
}

/**
 * The service keys of a person who is about to be removed: programs can depend on them, and the person can know their
 * values.
 */
function MadeKeys({
  userId,
  where,
  revokes,
  onChange,
}: {
  userId: string;
  where: string;
  revokes: boolean;
  onChange: (revokes: boolean) => void;
}) {
  const mayRead = useMay('api_keys.read');
  const mayWrite = useMay('api_keys.write');
  const keys = useQuery({
    queryKey: ['api_key', 'list', 'made', userId],
    queryFn: () => answerOf(api.GET('/v1/api-keys', { params: { query: { created_by: userId, limit: 100 } } })),
    enabled: mayRead,
  });
  const made = keys.data?.data.filter(({ user_id: owner }) => owner === null) ?? [];
  return (
    <>
      {made.length === 0 ? null : (
        <span className="hint">
          Service keys that they created in this workspace: {made.map(({ name }) => name).join(', ')}
          {keys.data?.has_more ? ' and more' : ''}. These keys keep working, and the person may still have them.
        </span>
      )}
      {mayWrite ? (
        <label className="row">
          <input type="checkbox" checked={revokes} onChange={(event) => onChange(event.target.checked)} />
          Also revoke the service keys that they created {where}
        </label>
      ) : null}
    </>
  );
}

function AddMember() {
  const { workspace } = useSession();
  const mayReadUsers = [useMay('users.read'), useActsForOrganisation()].every(Boolean);
  const users = useQuery({
    queryKey: ['user', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/admin/users', { params: { query } }))),
    enabled: mayReadUsers,
  });
  const [userId, setUserId] = useState('');
  const [role, setRole] = useState<Role>('member');
  const add = useChange<void, unknown>(['user'], () =>
    answerOf(
      api.POST('/v1/admin/workspaces/{workspaceId}/users', {
        params: { path: { workspaceId: workspace.id } },
        body: { users: [{ id: userId, role }] },
      }),
    ),
  );
  const others = users.data?.data.filter(({ workspace_ids: ids }) => !ids.includes(workspace.id)) ?? [];
  return (
    <FormDialog text="Add a member" title={`Add a member to ${workspace.name}`} submit="Add" act={add}>
      <label>
        Person
        <select value={userId} onChange={(event) => setUserId(event.target.value)} required>
          <option value="">Choose…</option>
          {others.map((user) => (
            <option key={user.id} value={user.id}>
              {nameOf(user)} ({user.email})
            </option>
          ))}
        </select>
        <span className="hint">To add a person who is not in the list, send an invite.</span>
      </label>
      <label>
        Role
        <RoleSelect value={role} label="Role of the new member" onChange={setRole} />
      </label>
    </FormDialog>
  );
}

function Invites() {
  const invites = useQuery({
    queryKey: ['invite', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/admin/users/invites', { params: { query } }))),
  });
  const mayWrite = useMay('users.write');
  const tones = { pending: 'info', accepted: 'good', cancelled: 'plain', expired: 'warn' } as const;
  return (
    <Card title="Invites" flush aside={mayWrite ? <InviteForm /> : null}>
      <Shown query={invites}>
        {({ data, total }) =>
          data.length === 0 ? (
            <Empty title="No invites yet">
              <p>An invite is a link that works once. Send it to the person yourself; Sluice does not send e-mail.</p>
            </Empty>
          ) : (
            <RecordTable
              label="Invites"
              total={total}
              textOf={({ email, role, status }) => `${email} ${role} ${status}`}
              rows={data}
              keyOf={({ id }) => id}
              columns={[
                { head: 'E-mail', isLong: true, cell: ({ email }) => email },
                { head: 'Role', cell: ({ role }) => role },
                { head: 'State', cell: ({ status }) => <Badge tone={tones[status]}>{status}</Badge> },
                { head: 'Created', cell: ({ created_at: at }) => <Ago at={at} /> },
                { head: 'Expires', cell: ({ expires_at: at }) => dateTime(at) },
                {
                  head: 'Actions',
                  cell: (invite) =>
                    mayWrite && invite.status === 'pending' ? <PendingInvite invite={invite} /> : null,
                },
              ]}
            />
          )
        }
      </Shown>
    </Card>
  );
}

const linkNote = 'The link works once and is shown only now. Send it to the person through a channel that you trust.';

function PendingInvite({ invite: { id, email } }: { invite: Invite }) {
  const path = { path: { id } };
  const resend = useChange<void, { invite_link: string }>(['invite'], () =>
    answerOf(api.POST('/v1/admin/users/invites/{id}/resend', { params: path })),
  );
  const cancel = useChange<void, unknown>(['invite'], () =>
    answerOf(api.DELETE('/v1/admin/users/invites/{id}', { params: path })),
  );
  return (
    <div className="row">
      <FormDialog
        quiet
        text="New link"
        title={`Create a new link for ${email}?`}
        submit="Create a new link"
        act={resend}
        shown={({ invite_link: link }) => ({ label: 'Invite link', text: link, note: linkNote })}
      >
        <p>The previous link stops working.</p>
      </FormDialog>
      <Confirmed text="Cancel" question={`Cancel the invite of ${email}?`} act={cancel}>
        The link stops working.
      </Confirmed>
    </div>
  );
}

function InviteForm() {
  const { workspace } = useSession();
  const [email, setEmail] = useState('');
  const [orgRole, setOrgRole] = useState<'admin' | 'member'>('member');
  const [role, setRole] = useState<Role>('member');
  const invite = useChange<void, { invite_link: string }>(['invite'], async () => {
    const body = { email: email.trim(), role: orgRole, workspaces: [{ id: workspace.id, role }] };
    // The OpenAPI document does not include the link, because only this answer contains it.
    const response = await send('/v1/admin/users/invites', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    return (await response.json()) as { invite_link: string };
  });
  return (
    <FormDialog
      text="Invite a person"
      title="Invite a person"
      submit="Create link"
      act={invite}
      shown={({ invite_link: link }) => ({ label: 'Invite link', text: link, note: linkNote })}
    >
      <label>
        E-mail
        <input type="email" value={email} onChange={(event) => setEmail(event.target.value)} required />
      </label>
      <label>
        In the organisation
        <select value={orgRole} onChange={(event) => setOrgRole(event.target.value as 'admin' | 'member')}>
          <option value="member">member: access according to the role in each workspace</option>
          <option value="admin">admin: full access to all workspaces</option>
        </select>
      </label>
      <label>
        In {workspace.name}
        <RoleSelect value={role} label={`Role in ${workspace.name}`} onChange={setRole} />
      </label>
    </FormDialog>
  );
}

function Users() {
  const users = useQuery({
    queryKey: ['user', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/admin/users', { params: { query } }))),
  });
  const mayWrite = useMay('users.write');
  return (
    <Card title="People of the organisation" flush>
      <Shown query={users}>
        {({ data, total }) => (
          <RecordTable
            label="People"
            total={total}
            textOf={(user) => `${nameOf(user)} ${user.email} ${user.role}`}
            rows={data}
            keyOf={({ id }) => id}
            columns={[
              { head: 'Name', isLong: true, cell: nameOf },
              { head: 'E-mail', isLong: true, cell: ({ email }) => email },
              { head: 'Role', cell: ({ role }) => <Badge tone={role === 'owner' ? 'info' : 'plain'}>{role}</Badge> },
              { head: 'Workspaces', cell: ({ workspace_ids: ids }) => ids.length, isNumber: true },
              { head: 'Joined', cell: ({ created_at: at }) => <Ago at={at} /> },
              {
                head: 'Actions',
                cell: (user) => (mayWrite && user.role !== 'owner' ? <RemoveUser user={user} /> : null),
              },
            ]}
          />
        )}
      </Shown>
    </Card>
  );
}

function RemoveUser({ user: { id, email } }: { user: User }) {
  const [revokes, setRevokes] = useState(false);
  const act = useChange<void, unknown>(['user', 'api_key'], () =>
    answerOf(
      api.DELETE('/v1/admin/users/{id}', {
        params: { path: { id }, query: { revoke_keys: revokes ? 'true' : 'false' } },
      }),
    ),
  );
  return (
    <Confirmed text="Remove" question={`Remove ${email} from the organisation?`} act={act}>
      They are removed from all workspaces, and all of their keys stop working within a second.
      <MadeKeys userId={id} where="in all workspaces" revokes={revokes} onChange={setRevokes} />
    </Confirmed>
  );
}

function Workspaces() {
  const isAllowed = useMay('workspaces.read');
  const mayWrite = useMay('workspaces.write');
  const { workspace } = useSession();
  const workspaces = useQuery({
    queryKey: ['workspace', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/admin/workspaces', { params: { query } }))),
    enabled: isAllowed,
  });
  const [name, setName] = useState('');
  const create = useChange<void, unknown>(['workspace'], () =>
    answerOf(api.POST('/v1/admin/workspaces', { body: { name: name.trim() } })),
  );
  if (!isAllowed) return null;
  return (
    <Card
      title="Workspaces"
      flush
      aside={
        mayWrite ? (
          <FormDialog text="Create a workspace" title="Create a workspace" submit="Create" act={create}>
            <label>
              Name
              <input value={name} onChange={(event) => setName(event.target.value)} required maxLength={200} />
            </label>
            <p className="hint">
              The console shows the workspace of the key that you sign in with. To open the new workspace, create a key
              for it: send its <code>workspace_id</code> to POST /v1/api-keys.
            </p>
          </FormDialog>
        ) : null
      }
    >
      <Shown query={workspaces}>
        {({ data, total }) => (
          <RecordTable
            label="Workspaces"
            total={total}
            textOf={({ name, slug, id }) => `${name} ${slug} ${id}`}
            rows={data}
            keyOf={({ id }) => id}
            chosen={workspace.id}
            columns={[
              {
                head: 'Name',
                isLong: true,
                cell: ({ name: text, legal_hold: hold }) => (
                  <>
                    {text} {hold?.active ? <Badge tone="warn">legal hold</Badge> : null}
                  </>
                ),
              },
              { head: 'Slug', isLong: true, cell: ({ slug }) => <code>{slug}</code> },
              { head: 'ID', cell: ({ id }) => <Id id={id} /> },
              { head: 'Budgets', cell: limitsText },
              {
                head: 'Batch weight',
                cell: ({ slug, batch_weight: weight }) => (
                  <span className="row">
                    {weight}
                    {mayWrite ? <BatchWeight slug={slug} weight={weight} /> : null}
                  </span>
                ),
              },
              { head: 'Created', cell: ({ created_at: at }) => <Ago at={at} /> },
            ]}
          />
        )}
      </Shown>
    </Card>
  );
}

/** Changes the share of the workers that the batches of a workspace get. */
function BatchWeight({ slug, weight }: { slug: string; weight: number }) {
  const [value, setValue] = useState(String(weight));
  const change = useChange<void, unknown>(['workspace'], () =>
    answerOf(
      api.PUT('/v1/admin/workspaces/{slug}', { params: { path: { slug } }, body: { batch_weight: Number(value) } }),
    ),
  );
  return (
    <FormDialog text="Change" title={`Batch weight of ${slug}`} submit="Save" act={change}>
      <label>
        Batch weight
        <input
          type="number"
          min={0.1}
          max={100}
          step={0.1}
          required
          value={value}
          onChange={(event) => setValue(event.target.value)}
        />
      </label>
      <p className="hint">
        With a weight of 3, the batches of a workspace get three times the share of the workers that those of a
        workspace with a weight of 1 get.
      </p>
    </FormDialog>
  );
}

const limitsText = ({ usage_limits: budgets, rate_limits: rates }: Workspace): string =>
  budgets.length + rates.length === 0 ? 'none' : `${budgets.length} budgets, ${rates.length} rates`;
