import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { webhookEventTypes } from '../../generated/names.ts';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { AsCurl, Badge, Card, Empty, ErrorNote, PageHead, Shown } from '../parts/basics.tsx';
import { Confirmed, FormDialog, useChange } from '../parts/changes.tsx';
import { RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { Deliveries } from './webhook-deliveries.tsx';

type Endpoint = Answer<'/v1/webhook_endpoints'>['data'][number];

type EventType = (typeof webhookEventTypes)[number];

const nouns = ['webhook_endpoint'];
const shownSecret = ({ signing_secret: text = '' }: Pick<Endpoint, 'signing_secret'>) => ({
  label: 'Signing secret',
  text,
  note: 'This is the only time the secret is shown. Your receiver needs it to verify deliveries.',
});

/** The URLs that are called when batches and fine-tuning jobs end, and the deliveries to the selected one. */
export function Webhooks() {
  const { id } = useSearch({ strict: false }) as { id?: string };
  const navigate = useNavigate();
  const mayWrite = useMay('webhooks.write');
  const endpoints = useQuery({
    queryKey: ['webhook_endpoint', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/webhook_endpoints', { params: { query } }))),
  });
  return (
    <div className="stack">
      <PageHead title="Webhooks" text="Sluice calls your URLs when batches and fine-tuning jobs end.">
        {mayWrite ? <NewEndpoint /> : null}
      </PageHead>
      <Shown query={endpoints}>
        {({ data, total }) => {
          const chosen = data.find((endpoint) => endpoint.id === id) ?? data[0];
          if (chosen === undefined) {
            return (
              <Card flush>
                <Empty title="No webhook endpoints yet">
                  <p>
                    Your program learns from a webhook that a batch has ended, without asking for it. OpenAI’s clients
                    can verify the deliveries.
                  </p>
                </Empty>
              </Card>
            );
          }
          const choose = (next: string): void => void navigate({ to: '/webhooks', search: { id: next } });
          return (
            <>
              <Card flush>
                <Endpoints endpoints={data} total={total} chosen={chosen.id} onChoose={choose} />
              </Card>
              <Deliveries key={chosen.id} endpoint={chosen} />
            </>
          );
        }}
      </Shown>
      <AsCurl path="/v1/webhook_endpoints" />
    </div>
  );
}

function Endpoints({
  endpoints,
  total,
  chosen,
  onChoose,
}: {
  endpoints: readonly Endpoint[];
  total: number;
  chosen: string;
  onChoose: (id: string) => void;
}) {
  const mayWrite = useMay('webhooks.write');
  return (
    <RecordTable<Endpoint>
      label="Webhook endpoints"
      total={total}
      textOf={({ name, url }) => `${name} ${url}`}
      rows={endpoints}
      keyOf={({ id }) => id}
      chosen={chosen}
      columns={[
        {
          head: 'Name',
          isLong: true,
          cell: ({ id, name }) => (
            <button type="button" className="link" aria-pressed={id === chosen} onClick={() => onChoose(id)}>
              {name}
            </button>
          ),
        },
        {
          head: 'URL',
          isLong: true,
          cell: ({ url }) => <code title={url}>{url.length > 80 ? `${url.slice(0, 79)}…` : url}</code>,
        },
        { head: 'Events', cell: ({ event_types: types }) => types.map((type) => <div key={type}>{type}</div>) },
        { head: 'Secret', cell: ({ signing_secret_hint: hint }) => <code>{hint}</code> },
        {
          head: 'State',
          cell: ({ status }) => <Badge tone={status === 'enabled' ? 'good' : 'plain'}>{status}</Badge>,
        },
        {
          head: 'Actions',
          cell: (endpoint) =>
            mayWrite ? (
              <div className="row actions">
                <Switch endpoint={endpoint} />
                <Rotate endpoint={endpoint} />
                <Remove endpoint={endpoint} />
              </div>
            ) : null,
        },
      ]}
    />
  );
}

function NewEndpoint() {
  const [values, setValues] = useState({ name: '', url: '' });
  const [types, setTypes] = useState<readonly EventType[]>(webhookEventTypes);
  const create = useChange(nouns, async (_input: void) => {
    const { name, url } = values;
    const body = { name: name.trim(), url: url.trim(), event_types: [...types] };
    const created = await answerOf(api.POST('/v1/webhook_endpoints', { body }));
    setValues({ name: '', url: '' });
    return created;
  });
  return (
    <FormDialog
      primary
      text="Add an endpoint"
      title="Add a webhook endpoint"
      submit="Add"
      act={create}
      shown={shownSecret}
    >
      <label>
        Name
        <input
          value={values.name}
          required
          maxLength={200}
          onChange={(event) => setValues({ ...values, name: event.target.value })}
        />
      </label>
      <label>
        URL
        <input
          type="url"
          value={values.url}
          required
          maxLength={2_048}
          placeholder="https://app.example.com/hooks"
          onChange={(event) => setValues({ ...values, url: event.target.value })}
        />
        <span className="hint">Everyone who can read the endpoint sees the URL, so do not put a secret into it.</span>
      </label>
      <fieldset className="check-box">
        <legend>Events</legend>
        {webhookEventTypes.map((type) => (
          <label key={type} className="check">
            <input
              type="checkbox"
              checked={types.includes(type)}
              onChange={({ target }) =>
                setTypes(webhookEventTypes.filter((each) => (each === type ? target.checked : types.includes(each))))
              }
            />
            {type}
          </label>
        ))}
      </fieldset>
    </FormDialog>
  );
}

/** Disables or enables an endpoint. */
function Switch({ endpoint: { id, name, status } }: { endpoint: Endpoint }) {
  const next = status === 'enabled' ? 'disabled' : 'enabled';
  const change = useChange([...nouns, 'webhook_delivery'], (_input: void) =>
    answerOf(api.POST('/v1/webhook_endpoints/{id}', { params: { path: { id } }, body: { status: next } })),
  );
  if (next === 'disabled') {
    return (
      <Confirmed text="Disable" question={`Disable the endpoint ${name}?`} act={change}>
        Its pending deliveries end, and it gets no further events until you enable it. Events that happen meanwhile are
        not sent.
      </Confirmed>
    );
  }
  return (
    <>
      <button type="button" className="plain" disabled={change.isPending} onClick={() => change.mutate()}>
        Enable
      </button>
      {change.error === null ? null : <ErrorNote error={change.error} />}
    </>
  );
}

function Rotate({ endpoint: { id, name } }: { endpoint: Endpoint }) {
  const [keepsOld, setKeepsOld] = useState(true);
  const rotate = useChange(nouns, (_input: void) =>
    answerOf(
      api.POST('/v1/webhook_endpoints/{id}/rotate_secret', {
        params: { path: { id } },
        body: { keep_old_secret_active_for_24_hours: keepsOld },
      }),
    ),
  );
  return (
    <FormDialog
      quiet
      text="Rotate"
      title={`Replace the signing secret of ${name}`}
      submit="Create the new secret"
      act={rotate}
      shown={shownSecret}
    >
      <label className="check">
        <input type="checkbox" checked={keepsOld} onChange={(event) => setKeepsOld(event.target.checked)} />
        Also sign with the old secret for 24 hours
      </label>
    </FormDialog>
  );
}

function Remove({ endpoint: { id, name } }: { endpoint: Endpoint }) {
  const remove = useChange<void, unknown>(nouns, () =>
    answerOf(api.DELETE('/v1/webhook_endpoints/{id}', { params: { path: { id } } })),
  );
  return (
    <Confirmed text="Delete" question={`Delete the endpoint ${name}?`} act={remove}>
      Its pending deliveries end, and its signing secret is deleted.
    </Confirmed>
  );
}
