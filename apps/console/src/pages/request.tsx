import { useQuery } from '@tanstack/react-query';
import { Link, useParams } from '@tanstack/react-router';
import { answerOf, api } from '../api/client.ts';
import type { LogDetails } from '../api/types.ts';
import { count, dateTime, milliseconds, money } from '../format.ts';
import { AsCurl, Card, Code, Facts, Id, PageHead, Shown, Tile } from '../parts/basics.tsx';
import { OutcomeBadge } from './requests.tsx';

/** One call: where its time went, what the config did with it, and its bodies where they were recorded. */
export function RequestPage() {
  const { id } = useParams({ strict: false }) as { id: string };
  const query = useQuery({
    queryKey: ['log', id],
    queryFn: () => answerOf(api.GET('/v1/logs/{log_id}', { params: { path: { log_id: id } } })),
  });
  return (
    <div className="stack">
      <Shown query={query}>{(log) => <Details log={log} />}</Shown>
    </div>
  );
}

function Details({ log }: { log: LogDetails }) {
  const { usage } = log;
  return (
    <>
      <PageHead
        title={
          <span className="row">
            Request <OutcomeBadge record={log} />
          </span>
        }
        text={<Id id={log.id} />}
      >
        {log.trace_id === null ? null : (
          <Link to="/requests" search={{ trace_id: log.trace_id }} className="button">
            Others of this trace
          </Link>
        )}
        {log.batch_id === null ? null : (
          <Link to="/batches/$id" params={{ id: log.batch_id }} className="button">
            Its batch
          </Link>
        )}
      </PageHead>
      <div className="tiles">
        <Tile label="Took" value={milliseconds(log.duration_ms)} note={`${milliseconds(log.gateway_ms)} of it here`} />
        <Tile
          label="First event"
          value={milliseconds(log.first_event_ms)}
          note={log.stream ? 'of the stream' : 'not a stream'}
        />
        <Tile
          label="Tokens"
          value={usage === null ? '–' : `${count(usage.input_tokens)} → ${count(usage.output_tokens)}`}
          note={usage?.cached_tokens ? `${count(usage.cached_tokens)} from the provider's cache` : undefined}
        />
        <Tile
          label="Cost"
          value={money(log.cost)}
          note={log.price_version === null ? 'no known price' : `prices ${log.price_version}`}
        />
        <Tile label="Attempts" value={log.attempts} note={log.last_used_option ?? undefined} />
      </div>
      <Card title="Where the time went">
        <Waterfall log={log} />
      </Card>
      <div className="columns">
        <Card title="What was called">
          <Facts
            rows={[
              ['Operation', log.operation],
              ['Model', <code key="model">{log.model}</code>],
              ['Model that answered', log.response_model],
              ['Provider', log.provider],
              ['Virtual key', log.virtual_key],
              [
                'Config',
                log.config === null
                  ? null
                  : `${log.config.slug ?? log.config.id}, version ${log.config.version ?? '–'}`,
              ],
              ['Prompt', log.prompt_slug],
              ['Cache', log.cache_status],
              ['Finish reason', log.finish_reason],
            ]}
          />
        </Card>
        <Card title="Who and when">
          <Facts
            rows={[
              ['Recorded', dateTime(log.created_at)],
              ['Key', log.api_key_name ?? log.api_key_id],
              ['User', log.user_id],
              ['Kind', log.batch_line === null ? log.kind : `line ${count(log.batch_line)} of a batch`],
              ['Request id', <Id key="request" id={log.request_id} />],
              ['Trace id', log.trace_id === null ? null : <Id key="trace" id={log.trace_id} />],
              ["Provider's request id", log.provider_request_id],
              ['Metadata', log.metadata === null ? null : JSON.stringify(log.metadata)],
            ]}
          />
        </Card>
      </div>
      <div className="columns">
        {log.request.body === null ? (
          <Card title="Bodies">
            <p className="muted">
              They were not recorded. A workspace records them with <code>defaults.recording</code>, a key with{' '}
              <code>defaults.record_bodies</code>.
            </p>
          </Card>
        ) : (
          <>
            <Code value={log.request.body} label="Request" />
            <Code value={log.response.body} label="Answer" />
          </>
        )}
      </div>
      <AsCurl path={`/v1/logs/${log.id}`} />
    </>
  );
}

/** The phases of a call, as far as its record tells them apart. */
function Waterfall({ log }: { log: LogDetails }) {
  const all = Math.max(log.duration_ms, 0.01);
  const upstream = log.upstream_ms ?? 0;
  const before = Math.max(0, all - upstream);
  const first = log.first_event_ms;
  const isFailed = log.status === null || log.status >= 400;
  const steps = [
    { name: 'Call', from: 0, to: all, tone: 'quiet' },
    { name: 'Gateway', from: 0, to: before, tone: '' },
    {
      name: log.attempts === 1 ? 'Provider' : `Providers, ${log.attempts} attempts`,
      from: before,
      to: all,
      tone: isFailed ? 'bad' : '',
    },
    ...(first === null
      ? []
      : [
          { name: 'Until the first event', from: before, to: Math.max(before, first), tone: 'quiet' },
          { name: 'Stream', from: first, to: all, tone: '' },
        ]),
  ].filter(({ name }) => upstream > 0 || !name.startsWith('Provider'));
  return (
    <div className="waterfall">
      {steps.map(({ name, from, to, tone }) => (
        <div className="step" key={name}>
          <span>{name}</span>
          <span className="lane">
            <span className={tone} style={{ left: `${(from / all) * 100}%`, width: `${((to - from) / all) * 100}%` }} />
          </span>
          <span className="num small">{milliseconds(to - from)}</span>
        </div>
      ))}
    </div>
  );
}
