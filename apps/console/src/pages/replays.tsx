import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { count, milliseconds, usd } from '../format.ts';
import { Ago, AsCurl, Badge, Card, Code, Empty, Facts, PageHead, shortId, Shown, type Tone } from '../parts/basics.tsx';
import { DataTable, RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';

type Replay = Answer<'/v1/replays'>['data'][number];
type Difference = NonNullable<Answer<'/v1/replays/{id}'>['differences']>[number];
type Report = NonNullable<Replay['report']>;
type Side = Report['original'];

const tones: Record<Replay['status'], Tone> = { running: 'info', judging: 'info', completed: 'good', failed: 'bad' };

/** The traffic replays of the workspace, and the report of the selected one. */
export function Replays() {
  const { id, line } = useSearch({ strict: false }) as { id?: string; line?: string };
  const replays = useQuery({
    queryKey: ['traffic_replay', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/replays', { params: { query } }))),
  });
  return (
    <div className="stack">
      <PageHead
        title="Traffic replays"
        text="Recorded calls, called again with another model, config or prompt, and compared."
      />
      <Shown query={replays}>
        {({ data, total }) => {
          const chosen = data.find((replay) => replay.id === id) ?? data[0];
          if (chosen === undefined) {
            return (
              <Card flush>
                <Empty title="No traffic replays yet">
                  <p>
                    A replay shows what another model would have answered. Create one with{' '}
                    <code>sluice replay-traffic</code>, or as shown below.
                  </p>
                </Empty>
              </Card>
            );
          }
          return (
            <>
              <Card flush>
                <ReplayTable replays={data} total={total} chosen={chosen.id} />
              </Card>
              <ReplayReport key={chosen.id} id={chosen.id} line={line === undefined ? null : Number(line)} />
            </>
          );
        }}
      </Shown>
      <AsCurl path="/v1/replays" method="POST" body={{ filters: {}, model: '@openai/gpt-5-mini', dry_run: true }} />
    </div>
  );
}

const ReplayTable = ({ replays, total, chosen }: { replays: readonly Replay[]; total: number; chosen: string }) => (
  <RecordTable<Replay>
    label="Traffic replays"
    rows={replays}
    total={total}
    keyOf={({ id }) => id}
    textOf={({ id, model, config, status }) => [id, model, config, status].join(' ')}
    chosen={chosen}
    columns={[
      {
        head: 'Replay',
        cell: ({ id }) => (
          <Link to="/replays" search={{ id }}>
            <code title={id}>{shortId(id)}</code>
          </Link>
        ),
      },
      { head: 'Status', cell: ({ status }) => <Badge tone={tones[status]}>{status}</Badge> },
      { head: 'Calls', cell: ({ selection }) => count(selection.calls), isNumber: true },
      { head: 'Replayed with', isLong: true, cell: describeChanges },
      { head: 'Equal', cell: ({ report }) => count(report?.equal), isNumber: true },
      { head: 'Different', cell: ({ report }) => count(report?.different), isNumber: true },
      { head: 'Cost', cell: ({ report }) => usd(report?.replay.cost_usd), isNumber: true },
      { head: 'Created', cell: ({ created_at: at }) => <Ago at={at} /> },
    ]}
  />
);

const describeChanges = ({ model, config, prompt }: Replay): string =>
  [model, config, prompt].filter((change) => change !== null).join(', ') || 'the same model';

function ReplayReport({ id, line }: { id: string; line: number | null }) {
  const replay = useQuery({
    queryKey: ['traffic_replay', id],
    queryFn: () => answerOf(api.GET('/v1/replays/{id}', { params: { path: { id } } })),
  });
  return (
    <Shown query={replay}>
      {({ report, differences = [], verdicts, error, ...rest }) => (
        <>
          <Card title="Summary">
            <Facts
              rows={[
                ['Batch', <BatchLink key="batch" id={rest.batch_id} />],
                [
                  'Lines of',
                  rest.source_batch_id === null ? 'recorded calls' : <BatchLink id={rest.source_batch_id} />,
                ],
                ['Left out', leftOutText(rest.selection.left_out)],
                ['Judge', rest.judge === null ? 'none' : rest.judge.model],
                ['Verdicts', verdicts === null ? null : verdictText(verdicts)],
                ['Error', error],
              ]}
            />
          </Card>
          {report === null ? null : <Sides report={report} />}
          {differences.length === 0 ? null : (
            <Card title="Differences, worst first" flush>
              <Differences differences={differences} id={id} chosen={line} />
            </Card>
          )}
          {differences
            .filter((each) => each.line === line)
            .map((difference) => (
              <Answers
                key={difference.line}
                difference={difference}
                batchId={rest.batch_id}
                sourceId={rest.source_batch_id}
              />
            ))}
        </>
      )}
    </Shown>
  );
}

const BatchLink = ({ id }: { id: string }) => (
  <Link to="/batches/$id" params={{ id }}>
    <code title={id}>{shortId(id)}</code>
  </Link>
);

const leftOutText = (leftOut: Replay['selection']['left_out']): string =>
  Object.entries(leftOut)
    .map(([reason, calls]) => `${reason.replaceAll('_', ' ')} ${count(calls)}`)
    .join(', ') || 'none';

const verdictText = ({ wins, ties, losses, unclear }: NonNullable<Replay['verdicts']>): string =>
  `${count(wins)} better, ${count(ties)} ties, ${count(losses)} worse, ${count(unclear)} unclear`;

const measures: readonly (readonly [name: string, read: (side: Side) => string])[] = [
  ['Answered', ({ answered }) => count(answered)],
  ['Failed', ({ failed }) => count(failed)],
  ['Latency p50', ({ latency_ms: { p50 } }) => milliseconds(p50)],
  ['Latency p95', ({ latency_ms: { p95 } }) => milliseconds(p95)],
  ['Input tokens', ({ input_tokens: tokens }) => count(tokens)],
  ['Output tokens', ({ output_tokens: tokens }) => count(tokens)],
  ['Cost', ({ cost_usd: cost }) => usd(cost)],
  ['Match their schema', ({ valid }) => count(valid)],
  ['Do not match it', ({ invalid }) => count(invalid)],
];

const Sides = ({ report }: { report: Report }) => (
  <Card title={`${count(report.equal)} equal, ${count(report.different)} different answers`} flush>
    <DataTable<(typeof measures)[number]>
      label="Original and replay"
      rows={measures}
      keyOf={([name]) => name}
      columns={[
        { head: 'Measure', cell: ([name]) => name },
        { head: 'Original', cell: ([, read]) => read(report.original), isNumber: true },
        { head: 'Replay', cell: ([, read]) => read(report.replay), isNumber: true },
      ]}
    />
  </Card>
);

function Differences({
  differences,
  id,
  chosen,
}: {
  differences: readonly Difference[];
  id: string;
  chosen: number | null;
}) {
  const navigate = useNavigate();
  return (
    <DataTable<Difference>
      label="Differences"
      rows={differences}
      keyOf={({ line }) => String(line)}
      chosen={String(chosen)}
      columns={[
        { head: 'Line', cell: ({ line }) => count(line), isNumber: true },
        { head: 'Difference', cell: ({ kind }) => kind.replaceAll('_', ' ') },
        { head: 'Similarity', cell: ({ similarity }) => similarity ?? '–', isNumber: true },
        { head: 'Verdict', cell: ({ verdict }) => verdict ?? '–' },
        { head: 'Original', isLong: true, cell: ({ custom_id: customId }) => <code>{customId}</code> },
        {
          head: 'Answers',
          cell: ({ line }) => (
            <button
              type="button"
              className="plain"
              onClick={() => void navigate({ to: '/replays', search: { id, line: String(line) } })}
            >
              Compare
            </button>
          ),
        },
      ]}
    />
  );
}

/** Both answers, read where they are stored, so that the rights for them apply. */
function Answers({
  difference: { line, custom_id: customId, original_line: originalLine },
  batchId,
  sourceId,
}: {
  difference: Difference;
  batchId: string;
  sourceId: string | null;
}) {
  const readsLogs = useMay('logs.read');
  return (
    <Card title={`Line ${count(line)}`}>
      {sourceId !== null && originalLine !== null ? (
        <LineAnswer label="Original" batchId={sourceId} line={originalLine} />
      ) : readsLogs ? (
        <CallAnswer logId={customId} />
      ) : null}
      <LineAnswer label="Replay" batchId={batchId} line={line} />
    </Card>
  );
}

function LineAnswer({ label, batchId, line }: { label: string; batchId: string; line: number }) {
  const path = { batch_id: batchId, line: String(line) };
  const answer = useQuery({
    queryKey: ['batch_line', batchId, line],
    queryFn: () => answerOf(api.GET('/v1/batches/{batch_id}/lines/{line}', { params: { path } })),
  });
  return <Shown query={answer}>{({ result }) => <Code label={label} value={result} />}</Shown>;
}

function CallAnswer({ logId }: { logId: string }) {
  const log = useQuery({
    queryKey: ['log', logId],
    queryFn: () => answerOf(api.GET('/v1/logs/{log_id}', { params: { path: { log_id: logId } } })),
  });
  return (
    <Shown query={log}>
      {({ request, response }) => (
        <>
          <Code label="Request" value={request.body} />
          <Code label="Original" value={response.body} />
        </>
      )}
    </Shown>
  );
}
