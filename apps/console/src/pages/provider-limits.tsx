import { useQuery } from '@tanstack/react-query';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { count, dateTime, duration, short } from '../format.ts';
import { Ago, Badge, Card, Empty, Shown } from '../parts/basics.tsx';
import { RecordTable } from '../parts/table.tsx';

type ProviderLimit = Answer<'/v1/admin/provider-limits'>['data'][number];

/** What providers said of their own limits in their last answers, for each credential and model. */
export function ProviderLimits() {
  const limits = useQuery({
    queryKey: ['calls', 'provider limits'],
    queryFn: () => answerOf(api.GET('/v1/admin/provider-limits')),
  });
  return (
    <Card title="Limits that providers reported" flush>
      <Shown query={limits}>
        {({ data }) =>
          data.length === 0 ? (
            <Empty title="No provider reported a limit today">
              <p>
                Many providers say with each answer how many requests and tokens they allow, and how many are left. It
                is here within seconds of a call.
              </p>
            </Empty>
          ) : (
            <RecordTable<ProviderLimit>
              label="Limits that providers reported"
              total={data.length}
              textOf={({ virtual_key: key, provider, model }) => `${key} ${provider} ${model}`}
              rows={data}
              keyOf={({ id }) => id}
              columns={[
                { head: 'Virtual key', isLong: true, cell: ({ virtual_key: key }) => <code>{key}</code> },
                { head: 'Provider', cell: ({ provider }) => provider },
                { head: 'Model', isLong: true, cell: ({ model }) => <code>{model === '' ? '–' : model}</code> },
                { head: 'Calls now', cell: ({ waits_until: until }) => <WaitBadge until={until} /> },
                { head: 'Left, when it was said', cell: (row) => <Left row={row} /> },
                { head: 'Said', cell: ({ reported_at: at }) => <Ago at={at * 1_000} /> },
              ]}
            />
          )
        }
      </Shown>
    </Card>
  );
}

const WaitBadge = ({ until }: { until: number | null }) =>
  until === null || until * 1_000 <= Date.now() ? (
    <Badge tone="good">go</Badge>
  ) : (
    <span title={dateTime(until * 1_000)}>
      <Badge tone="warn">wait {duration(until * 1_000 - Date.now())}</Badge>
    </span>
  );

const Left = ({ row: { limits } }: { row: ProviderLimit }) =>
  limits.length === 0 ? (
    <span className="muted">it only said how long to wait</span>
  ) : (
    <ul className="plain-list">
      {limits.map(({ of, limit, remaining, resets_at: resetsAt }) => (
        <li key={of} className="nowrap" title={`${count(remaining)} of ${count(limit)}`}>
          {remaining === null ? `${short(limit)} allowed` : short(remaining)}
          {remaining === null || limit === null ? '' : ` of ${short(limit)}`} {of.replaceAll('-', ' ')}
          <span className="muted">{resetText(resetsAt)}</span>
        </li>
      ))}
    </ul>
  );

function resetText(resetsAt: number | null): string {
  if (resetsAt === null) return '';
  const leftMs = resetsAt * 1_000 - Date.now();
  return leftMs <= 0 ? '' : `, all of it again in ${duration(leftMs)}`;
}
