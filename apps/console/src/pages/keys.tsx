import { useQuery } from '@tanstack/react-query';
import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { providerNames } from '../../generated/names.ts';
import { groupQuery, type Group } from '../analytics.ts';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { count, dateTime, milliseconds, money } from '../format.ts';
import { Ago, AsCurl, Badge, Card, Empty, PageHead, Shown, type Tone } from '../parts/basics.tsx';
import { Confirmed, FormDialog, useChange } from '../parts/changes.tsx';
import { DataTable, RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { ApiKeys } from './api-keys.tsx';
import { OutcomeBadge } from './requests.tsx';

type VirtualKey = Answer<'/v1/virtual-keys'>['data'][number];
type NamedProvider = Omit<Answer<'/v1/providers'>['data'][number], 'reset_usage'>;

const tabs = { providers: 'Providers', keys: 'API keys' } as const;

/** Provider credentials with their health, and the keys that clients of this gateway send. */
export function Keys() {
  const { tab = 'providers' } = useSearch({ strict: false }) as { tab?: string };
  return (
    <div className="stack">
      <PageHead
        title="Keys and providers"
        text="A virtual key stores the credential of a provider. Your programs send an API key to this gateway."
      />
      <nav className="tabs" aria-label="Key types">
        {Object.entries(tabs).map(([name, text]) => (
          <Link key={name} to="/keys" search={{ tab: name }} aria-current={name === tab ? 'page' : undefined}>
            {text}
          </Link>
        ))}
      </nav>
      {tab === 'keys' ? <ApiKeys /> : <Providers />}
    </div>
  );
}

function Providers() {
  const mayReadKeys = useMay('virtual_keys.read');
  const mayReadProviders = useMay('providers.read');
  const mayAnalyse = useMay('analytics.read');
  const keys = useQuery({
    queryKey: ['virtual_key', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/virtual-keys', { params: { query } }))),
    enabled: mayReadKeys,
  });
  const named = useQuery({
    queryKey: ['provider', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/providers', { params: { query } }))),
    enabled: mayReadProviders,
  });
  const health = useQuery({ ...groupQuery('virtual_key', '24h', { limit: 100 }), enabled: mayAnalyse });
  const healthOf = new Map(health.data?.data.map((group) => [String(group['virtual_key']), group]));
  return (
    <>
      {mayReadProviders ? <Circuits /> : null}
      {mayReadKeys ? <VirtualKeys query={keys} healthOf={healthOf} /> : null}
      {mayReadProviders && (named.data?.data.length ?? 0) > 0 ? <Named query={named} healthOf={healthOf} /> : null}
      <LastErrors />
      <AsCurl path="/v1/virtual-keys" />
    </>
  );
}

type ListQuery<Row> = { data: { data: Row[]; total: number } | undefined; error: unknown; failureReason: unknown };
type Health = ReadonlyMap<string, Group>;

const figure = (group: Group | undefined, name: string): number => Number(group?.[name] ?? 0);

/**
 * The results of the calls that reached the provider with a credential within a day, and the number of calls that were
 * refused before that.
 */
function HealthBadge({ group }: { group: Group | undefined }) {
  const refused = figure(group, 'refused_count');
  const calls = (group?.requests ?? 0) - refused;
  const rate = calls === 0 ? 100 : (100 * (calls - figure(group, 'provider_error_count'))) / calls;
  const tone: Tone = rate >= 99 ? 'good' : rate >= 90 ? 'warn' : 'bad';
  return (
    <>
      {calls === 0 ? (
        <Badge>no calls today</Badge>
      ) : (
        <Badge tone={tone}>
          {rate.toFixed(rate > 99 && rate < 100 ? 2 : 0)} % of {count(calls)} succeeded
        </Badge>
      )}
      {refused === 0 ? null : <Badge tone="warn">{count(refused)} rejected by the gateway</Badge>}
    </>
  );
}

const statusTones: Readonly<Record<string, Tone>> = { active: 'good', exhausted: 'warn', expired: 'bad' };
const healthColumns = (healthOf: Health) => [
  { head: 'Last 24 hours', cell: ({ slug }: { slug: string }) => <HealthBadge group={healthOf.get(slug)} /> },
  {
    head: 'Average latency',
    cell: ({ slug }: { slug: string }) =>
      healthOf.has(slug) ? milliseconds(figure(healthOf.get(slug), 'avg_latency')) : '–',
    isNumber: true,
  },
  { head: 'Cost', cell: ({ slug }: { slug: string }) => money(healthOf.get(slug)?.cost), isNumber: true },
];

function VirtualKeys({ query, healthOf }: { query: ListQuery<VirtualKey>; healthOf: Health }) {
  const mayWrite = useMay('virtual_keys.write');
  return (
    <Card title="Virtual keys" flush aside={mayWrite ? <NewVirtualKey /> : null}>
      <Shown query={query}>
        {({ data, total }) =>
          data.length === 0 ? (
            <Empty title="No virtual keys yet">
              <p>
                Store a provider credential here once. Calls then use its slug, and no program needs the credential.
              </p>
            </Empty>
          ) : (
            <RecordTable<VirtualKey>
              label="Virtual keys"
              total={total}
              textOf={({ slug, name, provider }) => `${slug} ${name} ${provider}`}
              rows={data}
              keyOf={({ id }) => id}
              columns={[
                {
                  head: 'Slug',
                  isLong: true,
                  cell: ({ slug }) => (
                    <Link to="/requests" search={{ virtual_key: slug }}>
                      <code>{slug}</code>
                    </Link>
                  ),
                },
                { head: 'Provider', cell: ({ provider }) => provider },
                { head: 'Credential', cell: ({ last_four: last }) => <code>{last === '' ? 'kept' : `…${last}`}</code> },
                {
                  head: 'State',
                  cell: ({ status }) => <Badge tone={statusTones[status] ?? 'plain'}>{status}</Badge>,
                },
                ...healthColumns(healthOf),
                {
                  head: 'Actions',
                  cell: (key) =>
                    mayWrite ? (
                      <div className="row actions">
                        <NewCredential virtualKey={key} />
                        <DeleteVirtualKey virtualKey={key} />
                      </div>
                    ) : null,
                },
              ]}
            />
          )
        }
      </Shown>
    </Card>
  );
}

const Named = ({ query, healthOf }: { query: ListQuery<NamedProvider>; healthOf: Health }) => (
  <Card title="Providers from integrations" flush>
    <Shown query={query}>
      {({ data }) => (
        <DataTable<NamedProvider>
          label="Providers from integrations"
          rows={data}
          keyOf={({ id }) => id}
          columns={[
            { head: 'Slug', isLong: true, cell: ({ slug }) => <code>{slug}</code> },
            { head: 'Provider', cell: ({ ai_provider_id: provider }) => provider },
            {
              head: 'State',
              cell: ({ status }) => <Badge tone={statusTones[status] ?? 'plain'}>{status.replaceAll('_', ' ')}</Badge>,
            },
            ...healthColumns(healthOf),
          ]}
        />
      )}
    </Shown>
  </Card>
);

function NewVirtualKey() {
  const [values, setValues] = useState({ name: '', provider: 'openai', key: '', host: '' });
  const set = (change: Partial<typeof values>): void => setValues({ ...values, ...change });
  const create = useChange<void, unknown>(['virtual_key'], async () => {
    const { name, provider, key, host } = values;
    const body = {
      name: name.trim(),
      provider: provider.trim(),
      ...(key === '' ? {} : { key }),
      ...(host.trim() === '' ? {} : { custom_host: host.trim() }),
    };
    await answerOf(api.POST('/v1/virtual-keys', { body }));
    setValues({ name: '', provider: 'openai', key: '', host: '' });
  });
  return (
    <FormDialog primary text="Add a virtual key" title="Add a virtual key" submit="Add" act={create}>
      <label>
        Name
        <input value={values.name} onChange={(event) => set({ name: event.target.value })} required maxLength={200} />
        <span className="hint">The slug that calls use is derived from the name.</span>
      </label>
      <label>
        Provider
        <select value={values.provider} onChange={(event) => set({ provider: event.target.value })}>
          {providerNames.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <span className="hint">
          For your own server, such as vLLM or Ollama, select it and enter its address below.
        </span>
      </label>
      <label>
        Credential
        <input
          type="password"
          autoComplete="off"
          value={values.key}
          onChange={(event) => set({ key: event.target.value })}
        />
        <span className="hint">
          Stored encrypted and never shown again. For providers with other credentials, such as Bedrock and Vertex, use
          POST /v1/virtual-keys (see docs/providers.md).
        </span>
      </label>
      <label>
        Address
        <input
          type="url"
          placeholder="default of the provider"
          value={values.host}
          onChange={(event) => set({ host: event.target.value })}
        />
      </label>
    </FormDialog>
  );
}

function NewCredential({ virtualKey: { slug } }: { virtualKey: VirtualKey }) {
  const [key, setKey] = useState('');
  const change = useChange<void, unknown>(['virtual_key'], async () => {
    await answerOf(api.PUT('/v1/virtual-keys/{slug}', { params: { path: { slug } }, body: { key } }));
    setKey('');
  });
  return (
    <FormDialog quiet text="Replace" title={`Replace the credential of ${slug}`} submit="Replace" act={change}>
      <label>
        New credential
        <input
          type="password"
          autoComplete="off"
          value={key}
          onChange={(event) => setKey(event.target.value)}
          required
        />
        <span className="hint">
          Calls use the new credential within a second. Then revoke the old one at the provider.
        </span>
      </label>
    </FormDialog>
  );
}

function DeleteVirtualKey({ virtualKey: { slug } }: { virtualKey: VirtualKey }) {
  const remove = useChange<void, unknown>(['virtual_key'], () =>
    answerOf(api.DELETE('/v1/virtual-keys/{slug}', { params: { path: { slug } } })),
  );
  return (
    <Confirmed text="Delete" question={`Delete the virtual key ${slug}?`} act={remove}>
      Calls and configs that use it will fail. Its credential is deleted too.
    </Confirmed>
  );
}

/** The targets for which calls are currently refused because the provider failed too often. */
function Circuits() {
  const circuits = useQuery({
    queryKey: ['calls', 'circuits'],
    queryFn: () => answerOf(api.GET('/v1/admin/circuits')),
  });
  return (
    <Shown query={circuits}>
      {({ data }) =>
        data.length === 0 ? (
          <div className="note-box good">No open circuits. All providers can be called.</div>
        ) : (
          <Card title="Open circuits" flush>
            <DataTable
              label="Open circuits"
              rows={data}
              keyOf={({ id }) => id}
              columns={[
                { head: 'Provider', cell: ({ provider }) => provider },
                { head: 'Virtual key', isLong: true, cell: ({ virtual_key: key }) => <code>{key}</code> },
                { head: 'Model', isLong: true, cell: ({ model }) => <code>{model}</code> },
                {
                  head: 'State',
                  cell: ({ state }) => (
                    <Badge tone={state === 'open' ? 'bad' : 'warn'}>{state === 'open' ? 'open' : 'half open'}</Badge>
                  ),
                },
                { head: 'Reason', cell: ({ reason, failures }) => `${reason}, ${failures} failures` },
                {
                  head: 'Retried',
                  cell: ({ state, open_until: until }) =>
                    state === 'open' ? dateTime(until * 1_000) : 'with the next call',
                },
              ]}
            />
          </Card>
        )
      }
    </Shown>
  );
}

function LastErrors() {
  const isAllowed = useMay('logs.read');
  const errors = useQuery({
    queryKey: ['calls', 'logs', 'last errors'],
    queryFn: () => answerOf(api.GET('/v1/logs', { params: { query: { status: 'failed', limit: 10 } } })),
    enabled: isAllowed,
  });
  if (!isAllowed || errors.data?.data.length === 0) return null;
  return (
    <Card
      title="Recent provider errors"
      flush
      aside={
        <Link to="/requests" search={{ status: 'failed' }}>
          All provider errors
        </Link>
      }
    >
      <Shown query={errors}>
        {({ data }) => (
          <DataTable
            label="Recent provider errors"
            rows={data}
            keyOf={({ id }) => id}
            columns={[
              {
                head: 'When',
                cell: ({ id, created_at: at }) => (
                  <Link to="/requests/$id" params={{ id }}>
                    <Ago at={at} />
                  </Link>
                ),
              },
              { head: 'Error', cell: (record) => <OutcomeBadge record={record} /> },
              { head: 'Provider', cell: ({ provider }) => provider ?? '–' },
              { head: 'Virtual key', isLong: true, cell: ({ virtual_key: key }) => <code>{key ?? '–'}</code> },
              { head: 'Model', isLong: true, cell: ({ model }) => <code>{model ?? '–'}</code> },
            ]}
          />
        )}
      </Shown>
    </Card>
  );
}
