import { useQuery } from '@tanstack/react-query';
import { Link, useParams } from '@tanstack/react-router';
import { answerOf, api } from '../api/client.ts';
import type { CallStep, LogDetails } from '../api/types.ts';
import { count, dateTime, milliseconds, usdOf } from '../format.ts';
import { AsCurl, Badge, Card, Code, Facts, Id, PageHead, Shown, Tile } from '../parts/basics.tsx';
import { DataTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { OutcomeBadge } from './requests.tsx';

/** One call: its timing, how the config processed it, and its bodies if they were recorded. */
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
  return (
    <>
      <Head log={log} />
      <Figures log={log} />
      <Card title="Timing">
        <Waterfall log={log} />
      </Card>
      <Properties log={log} />
      <Guardrails verdicts={log.guardrails} />
      <Bodies log={log} />
      <AsCurl path={`/v1/logs/${log.id}`} />
    </>
  );
}

function Head({ log }: { log: LogDetails }) {
  return (
    <PageHead
      title={
        <span className="row">
          Request <OutcomeBadge record={log} />
        </span>
      }
      text={<Id id={log.id} />}
    >
      {log.path === '/v1/chat/completions' ? (
        <Link to="/playground" search={{ from: log.id }} className="button">
          Run again
        </Link>
      ) : null}
      {log.trace_id === null ? null : (
        <Link to="/requests" search={{ trace_id: log.trace_id }} className="button">
          Show this trace
        </Link>
      )}
      {log.batch_id === null ? null : (
        <Link to="/batches/$id" params={{ id: log.batch_id }} className="button">
          Show batch
        </Link>
      )}
    </PageHead>
  );
}

function Figures({ log }: { log: LogDetails }) {
  const { usage } = log;
  return (
    <div className="tiles">
      <Tile
        label="Duration"
        value={milliseconds(log.duration_ms)}
        note={`${milliseconds(log.gateway_ms)} in the gateway`}
      />
      <Tile
        label="First event"
        value={milliseconds(log.first_event_ms)}
        note={log.stream ? 'streamed' : 'not streamed'}
      />
      <Tile
        label="Tokens"
        value={usage === null ? '–' : `${count(usage.input_tokens)} → ${count(usage.output_tokens)}`}
        note={usage?.cached_tokens ? `${count(usage.cached_tokens)} from the provider's cache` : undefined}
      />
      <Tile
        label="Cost"
        value={usdOf(log.cost_usd, log.provider === 'simulator')}
        note={log.price_version === null ? 'no known price' : `prices ${log.price_version}`}
      />
      <Tile label="Attempts" value={log.attempts} note={log.last_used_option ?? undefined} />
    </div>
  );
}

function Properties({ log }: { log: LogDetails }) {
  return (
    <div className="columns">
      <Card title="Call">
        <Facts
          rows={[
            ['Operation', log.operation],
            ['Model', <code key="model">{log.model}</code>],
            ['Public model', log.public_model],
            ['Response model', log.response_model],
            ['Provider', log.provider],
            ['Virtual key', log.virtual_key],
            [
              'Config',
              log.config === null ? null : `${log.config.slug ?? log.config.id}, version ${log.config.version ?? '–'}`,
            ],
            ['Prompt', log.prompt_slug],
            ['Cache', log.cache_status],
            [
              'Saved by the prompt cache',
              log.prompt_cache_saved_usd === null
                ? null
                : usdOf(log.prompt_cache_saved_usd, log.provider === 'simulator'),
            ],
            ['Finish reason', log.finish_reason],
          ]}
        />
      </Card>
      <Card title="Origin">
        <Facts
          rows={[
            ['Recorded', dateTime(log.created_at)],
            ['Key', log.api_key_name ?? log.api_key_id],
            ['User', log.user_id],
            ['Kind', log.batch_line === null ? log.kind : `line ${count(log.batch_line)} of a batch`],
            ['Request ID', <Id key="request" id={log.request_id} />],
            ['Trace ID', log.trace_id === null ? null : <Id key="trace" id={log.trace_id} />],
            [
              'Agent session',
              log.session_id === null ? null : (
                <Link key="session" to="/agent-sessions" search={{ session: log.session_id }}>
                  <code>{log.session_id}</code>
                </Link>
              ),
            ],
            ['Agent', log.agent_id === null ? null : <code key="agent">{log.agent_id}</code>],
            [
              'Provider request ID',
              log.provider_request_id === null ? null : <Id key="provider" id={log.provider_request_id} />,
            ],
            ['Metadata', log.metadata === null ? null : JSON.stringify(log.metadata)],
            ...(log.sha256_salt === null
              ? []
              : ([
                  ['Salt of the digests', <Id key="salt" id={log.sha256_salt} />],
                  ['SHA-256 of the request', <Digest key="request" digest={log.request_sha256} />],
                  ['SHA-256 of the answer', <Digest key="answer" digest={log.answer_sha256} />],
                ] as const)),
          ]}
        />
      </Card>
    </div>
  );
}

const Digest = ({ digest }: { digest: string | null }) => (digest === null ? '–' : <Id id={digest} />);

function Guardrails({ verdicts }: { verdicts: LogDetails['guardrails'] }) {
  if (verdicts === null) return null;
  return (
    <Card title="Guardrails" flush>
      <DataTable
        label="Guardrails"
        rows={[...verdicts.entries()]}
        keyOf={([index]) => String(index)}
        columns={[
          { head: 'Guardrail', isLong: true, cell: ([, { id, slug }]) => <code title={id}>{slug ?? id}</code> },
          { head: 'Version', cell: ([, { version }]) => version ?? 'part of the config' },
          { head: 'Checked', cell: ([, { kind }]) => (kind === 'input_guardrails' ? 'request' : 'answer') },
          {
            head: 'Result',
            cell: ([, { verdict }]) => <Badge tone={verdictTones[verdict]}>{verdict}</Badge>,
          },
        ]}
      />
    </Card>
  );
}

const verdictTones = { passed: 'good', failed: 'warn', denied: 'bad' } as const;

function Bodies({ log }: { log: LogDetails }) {
  const mayReadBodies = useMay('bodies.read');
  if (log.request.body !== null) {
    return (
      <div className="columns">
        <Code value={log.request.body} label="Request" />
        <Code value={log.response.body} label="Answer" />
      </div>
    );
  }
  return (
    <Card title="Bodies">
      <p className="muted">
        {mayReadBodies ? (
          <>
            The bodies were not recorded. To record them, set <code>defaults.recording</code> of the workspace or{' '}
            <code>defaults.record_bodies</code> of a key.
          </>
        ) : (
          <>
            To read recorded prompts and answers, you need the scope <code>bodies.read</code>, which workspace admins
            have.
          </>
        )}
      </p>
    </Card>
  );
}

type Bar = { name: string; note?: string | undefined; from: number; to: number; tone: string };

const stepNames = { input_guardrails: 'Input guardrails', output_guardrails: 'Output guardrails' };

/**
 * The phases of a call: each attempt and each run of guardrails if the record has them; otherwise, the phases that the
 * record distinguishes.
 */
function Waterfall({ log }: { log: LogDetails }) {
  const all = Math.max(log.duration_ms, 0.01);
  const first = log.first_event_ms;
  const stream = (from: number): Bar[] =>
    first === null ? [] : [{ name: 'Stream', from: Math.min(all, Math.max(from, first)), to: all, tone: '' }];
  const bars = log.steps === null ? plainBars(log, all, stream) : [...stepBars(log.steps), ...stream(0)];
  return (
    <div className="waterfall">
      {[{ name: 'Call', from: 0, to: all, tone: 'quiet' }, ...bars].map(
        ({ name, note, from, to, tone }: Bar, index) => (
          <div className="step" key={index}>
            <span>
              {name}
              {note === undefined ? null : <span className="small muted"> {note}</span>}
            </span>
            <span className="lane">
              <span
                className={tone}
                style={{
                  left: `${(Math.min(from, all) / all) * 100}%`,
                  width: `${(Math.max(0, Math.min(to, all) - Math.min(from, all)) / all) * 100}%`,
                }}
              />
            </span>
            <span className="num small">{milliseconds(to - from)}</span>
          </div>
        ),
      )}
    </div>
  );
}

function plainBars(log: LogDetails, all: number, stream: (from: number) => Bar[]): Bar[] {
  const upstream = log.upstream_ms ?? 0;
  const before = Math.max(0, all - upstream);
  const isFailed = log.outcome === 'failed';
  const bars: Bar[] = [{ name: 'Gateway', from: 0, to: before, tone: '' }];
  if (upstream > 0) {
    const name = log.attempts === 1 ? 'Provider' : `Providers, ${log.attempts} attempts`;
    bars.push({ name, from: before, to: all, tone: isFailed ? 'bad' : '' });
  }
  if (log.first_event_ms !== null) {
    const to = Math.max(before, log.first_event_ms);
    bars.push({ name: 'Until the first event', from: before, to, tone: 'quiet' });
  }
  return [...bars, ...stream(before)];
}

/** The time between two steps is spent in the gateway: waiting before a retry, for a rate limit or for a free slot. */
function stepBars(steps: readonly CallStep[]): Bar[] {
  let end = 0;
  return steps.flatMap((step): Bar[] => {
    const { kind, at_ms: from, duration_ms: duration } = step;
    const to = from + duration;
    const gap: Bar[] = from - end > 1 ? [{ name: 'Waited', from: end, to: from, tone: 'quiet' }] : [];
    end = Math.max(end, to);
    if (kind !== 'attempt') {
      const tone = step.outcome === 'passed' ? '' : 'bad';
      return [...gap, { name: stepNames[kind], note: step.outcome, from, to, tone }];
    }
    const isFailed = step.status == null || step.status >= 400;
    const note = [step.model, step.status ?? 'no answer', step.error_code].filter((part) => part != null).join(' · ');
    return [...gap, { name: step.target ?? 'Provider', note, from, to, tone: isFailed ? 'bad' : '' }];
  });
}
