import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { scopeNames } from '../../generated/names.ts';
import { groupQuery } from '../analytics.ts';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { count, dateTime, money } from '../format.ts';
import { Ago, AsCurl, Badge, Card, Empty, Shown } from '../parts/basics.tsx';
import { Confirmed, FormDialog, useChange } from '../parts/changes.tsx';
import { RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { WorkspaceSessions } from './sessions.tsx';

type ApiKey = Answer<'/v1/api-keys'>['data'][number];

const callScopes = ['chat.write', 'completions.write', 'embeddings.write', 'models.read', 'prompts.read'];

/** The purposes of a key, in words, and the scopes that each requires. null: all scopes. */
const uses: Readonly<Record<string, { text: string; scopes: readonly string[] | null }>> = {
  calls: {
    text: 'live calls: chat, completions, embeddings, models, prompts',
    scopes: callScopes,
  },
  batches: {
    text: 'live calls and batches',
    scopes: [...callScopes, 'files.read', 'files.write', 'batches.read', 'batches.write'],
  },
  watch: {
    text: 'read-only access to everything',
    scopes: scopeNames.filter((name) => name.endsWith('.read')),
  },
  all: { text: 'full access to this workspace', scopes: null },
};

const tones = { active: 'good', exhausted: 'warn', expired: 'bad' } as const;

/** The keys of this workspace: their rights, their costs, and their rotation. */
export function ApiKeys() {
  const isAllowed = useMay('api_keys.read');
  const mayWrite = useMay('api_keys.write');
  const keys = useQuery({
    queryKey: ['api_key', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/api-keys', { params: { query } }))),
    enabled: isAllowed,
  });
  const spent = useQuery({ ...groupQuery('api_key', '30d', { limit: 100 }), enabled: useMay('analytics.read') });
  const spentBy = new Map(spent.data?.data.map((group) => [String(group['api_key']), group]));
  if (!isAllowed) return <Empty title="Your key cannot list API keys">It lacks the scope api_keys.read.</Empty>;
  return (
    <>
      <Card title="API keys" flush aside={mayWrite ? <NewKey /> : null}>
        <Shown query={keys}>
          {({ data, total }) =>
            data.length === 0 ? (
              <Empty title="No API keys yet">
                <p>Create a separate key for each program, so that each has its own limits, costs and expiry.</p>
              </Empty>
            ) : (
              <RecordTable
                label="API keys"
                total={total}
                textOf={({ name, id, key, status }) => `${name} ${id} ${key} ${status}`}
                rows={data}
                keyOf={({ id }) => id}
                columns={[
                  { head: 'Name', isLong: true, cell: ({ name }) => name },
                  { head: 'Key', cell: ({ key }) => <code>{key}</code> },
                  {
                    head: 'Owner',
                    cell: ({ type }) => type.replace('workspace-', '').replace('organisation-service', 'organisation'),
                  },
                  { head: 'Scopes', cell: ({ scopes }) => <Scopes scopes={scopes} /> },
                  { head: 'State', cell: ({ status }) => <Badge tone={tones[status]}>{status}</Badge> },
                  { head: 'Calls, 30 days', cell: ({ id }) => count(spentBy.get(id)?.requests ?? 0), isNumber: true },
                  { head: 'Cost', cell: ({ id }) => money(spentBy.get(id)?.cost ?? 0), isNumber: true },
                  { head: 'Expires', cell: ({ expires_at: at }) => (at === null ? 'never' : dateTime(at)) },
                  { head: 'Created', cell: ({ created_at: at }) => <Ago at={at} /> },
                  {
                    head: 'Actions',
                    cell: (key) =>
                      mayWrite ? (
                        <div className="row actions">
                          <Rotate apiKey={key} />
                          <Revoke apiKey={key} />
                        </div>
                      ) : null,
                  },
                ]}
              />
            )
          }
        </Shown>
      </Card>
      <AsCurl path="/v1/api-keys" />
      <WorkspaceSessions mayWrite={mayWrite} />
    </>
  );
}

const Scopes = ({ scopes }: { scopes: readonly string[] | null }) => {
  if (scopes === null) return <>everything</>;
  return <span title={scopes.join(', ')}>{scopes.length === 1 ? scopes[0] : `${scopes.length} scopes`}</span>;
};

const keyNote = 'This key is shown only once. Copy it now and store it where your program reads its secrets.';

function NewKey() {
  const [values, setValues] = useState({ name: '', use: 'calls', days: '', budget: '' });
  const set = (change: Partial<typeof values>): void => setValues({ ...values, ...change });
  const create = useChange<void, { key: string }>(['api_key'], () => {
    const { name, use, days, budget } = values;
    const scopes = uses[use]?.scopes ?? null;
    const expires = days === '' ? {} : { expires_at: new Date(Date.now() + Number(days) * 86_400_000).toISOString() };
    const limits =
      budget === ''
        ? {}
        : {
            usage_limits: {
              type: 'cost' as const,
              credit_limit: Math.round(Number(budget) * 100),
              periodic_reset: 'monthly' as const,
            },
          };
    const body = { name: name.trim(), ...(scopes === null ? {} : { scopes: [...scopes] }), ...expires, ...limits };
    return answerOf(api.POST('/v1/api-keys', { body }));
  });
  return (
    <FormDialog
      primary
      text="Create a key"
      title="Create an API key"
      submit="Create"
      act={create}
      shown={({ key }) => ({ label: 'Key', text: key, note: keyNote })}
    >
      <label>
        Name
        <input value={values.name} onChange={(event) => set({ name: event.target.value })} required maxLength={200} />
        <span className="hint">For example, the program that uses the key.</span>
      </label>
      <label>
        For
        <select value={values.use} onChange={(event) => set({ use: event.target.value })}>
          {Object.entries(uses).map(([name, { text }]) => (
            <option key={name} value={name}>
              {text}
            </option>
          ))}
        </select>
      </label>
      <label>
        Expires after (days)
        <input
          type="number"
          min={1}
          max={3_650}
          placeholder="never"
          value={values.days}
          onChange={(event) => set({ days: event.target.value })}
        />
      </label>
      <label>
        Monthly budget (US dollars)
        <input
          type="number"
          min={1}
          step="any"
          placeholder="none"
          value={values.budget}
          onChange={(event) => set({ budget: event.target.value })}
        />
      </label>
    </FormDialog>
  );
}

const transitions: Readonly<Record<string, string>> = {
  '3600000': 'an hour',
  '86400000': 'a day',
  '604800000': 'a week',
};

function Rotate({ apiKey: { id, name } }: { apiKey: ApiKey }) {
  const [transition, setTransition] = useState('86400000');
  const rotate = useChange<void, { key: string }>(['api_key'], () =>
    answerOf(
      api.POST('/v1/api-keys/{id}/rotate', {
        params: { path: { id } },
        body: { key_transition_period_ms: Number(transition) },
      }),
    ),
  );
  return (
    <FormDialog
      quiet
      text="Rotate"
      title={`Replace the key ${name}`}
      submit="Create the new key"
      act={rotate}
      shown={({ key }) => ({ label: 'New key', text: key, note: keyNote })}
    >
      <label>
        The old key stays valid for
        <select value={transition} onChange={(event) => setTransition(event.target.value)}>
          {Object.entries(transitions).map(([ms, text]) => (
            <option key={ms} value={ms}>
              {text}
            </option>
          ))}
        </select>
        <span className="hint">Both keys work until then and share the same limits.</span>
      </label>
    </FormDialog>
  );
}

function Revoke({ apiKey: { id, name } }: { apiKey: ApiKey }) {
  const revoke = useChange<void, unknown>(['api_key'], () =>
    answerOf(api.DELETE('/v1/api-keys/{id}', { params: { path: { id } } })),
  );
  return (
    <Confirmed text="Revoke" question={`Revoke the key ${name}?`} act={revoke}>
      Every process rejects the key within a second. Its past calls and changes stay in the request log and the event
      log.
    </Confirmed>
  );
}
