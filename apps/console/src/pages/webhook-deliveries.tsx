import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { Ago, At, Badge, Card, Empty, ErrorNote, Id, shortId, Shown, type Tone } from '../parts/basics.tsx';
import { useChange } from '../parts/changes.tsx';
import { DataTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';

type Endpoint = Answer<'/v1/webhook_endpoints'>['data'][number];
type Delivery = Answer<'/v1/webhook_endpoints/{id}/deliveries'>['data'][number];

const tones: Record<Delivery['status'], Tone> = { pending: 'info', succeeded: 'good', failed: 'bad' };
const statuses = Object.keys(tones) as Delivery['status'][];
const shownMax = 100;
/** Deliveries have no events, so they are read again. */
const refreshMs = 3_000;

/** The newest deliveries to an endpoint. */
export function Deliveries({ endpoint: { id, name, status: state } }: { endpoint: Endpoint }) {
  const [status, setStatus] = useState<Delivery['status'] | ''>('');
  const deliveries = useQuery({
    queryKey: ['webhook_delivery', id, status],
    queryFn: () => {
      const query = { limit: shownMax, ...(status === '' ? {} : { status }) };
      return answerOf(api.GET('/v1/webhook_endpoints/{id}/deliveries', { params: { path: { id }, query } }));
    },
    refetchInterval: refreshMs,
  });
  return (
    <Card
      title={`Deliveries to ${name}`}
      flush
      aside={
        <select
          aria-label="Status of the deliveries"
          value={status}
          onChange={(event) => setStatus(event.target.value as Delivery['status'] | '')}
        >
          <option value="">All</option>
          {statuses.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      }
    >
      <Shown query={deliveries}>
        {({ data, has_more: hasMore }) =>
          data.length === 0 ? (
            <Empty title={status === '' ? 'No deliveries yet' : `No ${status} deliveries`}>
              <p>A delivery is listed here for 30 days after its batch or fine-tuning job has ended.</p>
            </Empty>
          ) : (
            <>
              <DeliveryTable deliveries={data} canResend={state === 'enabled'} />
              {hasMore ? <p className="small muted find">Only the newest {shownMax} deliveries are shown.</p> : null}
            </>
          )
        }
      </Shown>
    </Card>
  );
}

const DeliveryTable = ({ deliveries, canResend }: { deliveries: readonly Delivery[]; canResend: boolean }) => {
  const mayWrite = useMay('webhooks.write');
  return (
    <DataTable<Delivery>
      label="Deliveries"
      rows={deliveries}
      keyOf={({ id }) => id}
      columns={[
        { head: 'Created', cell: ({ created_at: at }) => <Ago at={at * 1_000} /> },
        { head: 'Event', cell: ({ event_type: type }) => type },
        { head: 'Object', cell: ({ data: { id } }) => <ObjectLink id={id} /> },
        { head: 'State', cell: ({ status }) => <Badge tone={tones[status]}>{status}</Badge> },
        { head: 'Attempts', cell: ({ attempts }) => attempts, isNumber: true },
        { head: 'Last answer', isLong: true, cell: lastAnswer },
        { head: 'Next attempt', cell: ({ next_attempt_at: at }) => (at === null ? '–' : <At at={at * 1_000} />) },
        {
          head: 'Actions',
          cell: (delivery) =>
            mayWrite && canResend && delivery.status !== 'pending' ? <Resend delivery={delivery} /> : null,
        },
      ]}
    />
  );
};

const ObjectLink = ({ id }: { id: string }) =>
  id.startsWith('batch_') ? (
    <Link to="/batches/$id" params={{ id }}>
      <code title={id}>{shortId(id)}</code>
    </Link>
  ) : (
    <Id id={id} />
  );

/** The status of the last answer, and why the attempt failed. */
const lastAnswer = ({ last_status_code: code, last_error: error }: Delivery) => (
  <>
    {code ?? (error === null ? '–' : '')} {error === null ? null : <code>{error}</code>}
  </>
);

function Resend({ delivery: { id, webhook_endpoint_id: endpointId } }: { delivery: Delivery }) {
  const resend = useChange(['webhook_delivery'], (_input: void) =>
    answerOf(
      api.POST('/v1/webhook_endpoints/{id}/deliveries/{delivery_id}/resend', {
        params: { path: { id: endpointId, delivery_id: id } },
      }),
    ),
  );
  return (
    <>
      <button type="button" className="plain" disabled={resend.isPending} onClick={() => resend.mutate()}>
        Resend
      </button>
      {resend.error === null ? null : <ErrorNote error={resend.error} />}
    </>
  );
}
