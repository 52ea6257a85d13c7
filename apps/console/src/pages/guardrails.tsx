import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useEffect, useState, type FormEvent } from 'react';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api, send } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { serverPath } from '../api/server-url.ts';
import { Ago, AsCurl, Badge, Card, Empty, ErrorNote, PageHead, Shown } from '../parts/basics.tsx';
import { Confirmed, useChange } from '../parts/changes.tsx';
import { RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { CheckFields, shortId, toChecks } from './check-fields.tsx';
import { conditionOf, guardrailSentence, templates, type CheckDraft } from './guardrail-sentences.ts';

type Guardrail = Omit<Answer<'/v1/guardrails'>['data'][number], 'object'>;

/** Stored guardrails as sentences, and an editor that tests a guardrail on two texts before it is saved. */
export function Guardrails() {
  const { slug } = useSearch({ strict: false }) as { slug?: string };
  const navigate = useNavigate();
  const open = (next: string | undefined): void =>
    void navigate({ to: '/guardrails', search: next === undefined ? {} : { slug: next } });
  const mayWrite = useMay('guardrails.write');
  const guardrails = useQuery({
    queryKey: ['guardrail', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/guardrails', { params: { query } }))),
  });
  return (
    <div className="stack">
      <PageHead
        title="Guardrails"
        text="Guardrails check the input and output of calls. Configs, keys and the workspace refer to them by slug."
      >
        {mayWrite ? (
          <button type="button" className="primary" onClick={() => open('new')}>
            New guardrail
          </button>
        ) : null}
      </PageHead>
      <Shown query={guardrails}>
        {({ data, total }) => {
          const chosen = data.find((guardrail) => guardrail.slug === slug);
          return (
            <>
              <Card flush>
                {data.length === 0 ? (
                  <Empty title="No guardrails yet">
                    <p>
                      A guardrail rejects or reports calls. For example, it can detect messages with an API key or card
                      number, answers that are not JSON, and models that are not allowed.
                    </p>
                    {mayWrite ? (
                      <button type="button" onClick={() => open('new')}>
                        Create your first guardrail
                      </button>
                    ) : null}
                  </Empty>
                ) : (
                  <List guardrails={data} total={total} chosen={slug} onChoose={open} />
                )}
              </Card>
              {slug === 'new' || chosen !== undefined ? (
                <Editor key={`${slug} ${chosen?.version}`} guardrail={chosen} onSaved={open} />
              ) : null}
            </>
          );
        }}
      </Shown>
      <AsCurl path="/v1/guardrails" />
    </div>
  );
}

const draftsOf = ({ checks }: Guardrail): CheckDraft[] =>
  checks.map(({ id, parameters }) => ({
    id: shortId(String(id)),
    parameters: (parameters ?? {}) as Record<string, unknown>,
  }));
const isDenying = ({ actions }: Guardrail): boolean => actions['deny'] === true;

function List({
  guardrails,
  total,
  chosen,
  onChoose,
}: {
  guardrails: readonly Guardrail[];
  total: number;
  chosen: string | undefined;
  onChoose: (slug: string | undefined) => void;
}) {
  const mayWrite = useMay('guardrails.write');
  return (
    <RecordTable
      label="Guardrails"
      total={total}
      textOf={({ slug, name }) => `${slug} ${name}`}
      rows={guardrails}
      keyOf={({ id }) => id}
      chosen={guardrails.find(({ slug }) => slug === chosen)?.id}
      columns={[
        {
          head: 'Name',
          isLong: true,
          cell: ({ name, slug }) => (
            <button type="button" className="link" onClick={() => onChoose(slug)}>
              {name}
            </button>
          ),
        },
        { head: 'Slug', isLong: true, cell: ({ slug }) => <code>{slug}</code> },
        {
          head: 'What it does',
          isLong: true,
          cell: (guardrail) => guardrailSentence(draftsOf(guardrail), isDenying(guardrail)),
        },
        { head: 'Owner', cell: ({ workspace_id: id }) => (id === null ? 'organisation' : 'this workspace') },
        { head: 'Version', cell: ({ version }) => version, isNumber: true },
        { head: 'Changed', cell: ({ last_updated_at: at }) => <Ago at={at} /> },
        {
          head: 'Actions',
          cell: (guardrail) => (mayWrite && guardrail.workspace_id !== null ? <Remove guardrail={guardrail} /> : null),
        },
      ]}
    />
  );
}

function Remove({ guardrail: { slug } }: { guardrail: Guardrail }) {
  const remove = useChange<void, unknown>(['guardrail'], () =>
    answerOf(api.DELETE('/v1/guardrails/{slug}', { params: { path: { slug } } })),
  );
  return (
    <Confirmed text="Delete" question={`Delete the guardrail ${slug}?`} act={remove}>
      You can delete a guardrail only when no config, key or workspace uses it.
    </Confirmed>
  );
}

const jsonHeaders = { 'content-type': 'application/json' };

function Editor({
  guardrail,
  onSaved,
}: {
  guardrail: Guardrail | undefined;
  onSaved: (slug: string | undefined) => void;
}) {
  const mayWrite = useMay('guardrails.write');
  const [first] = templates;
  const [name, setName] = useState(guardrail?.name ?? '');
  const [denies, setDenies] = useState(guardrail === undefined || isDenying(guardrail));
  const [allowsMedia, setAllowsMedia] = useState(guardrail?.actions['allow_media'] === true);
  const [drafts, setDrafts] = useState<CheckDraft[]>(
    guardrail === undefined ? templates.slice(0, 1).map(({ check }) => check) : draftsOf(guardrail),
  );
  const [samples, setSamples] = useState({
    passing: guardrail === undefined ? (first?.passing ?? '') : '',
    failing: guardrail === undefined ? (first?.failing ?? '') : '',
  });
  const checks = toChecks(drafts);
  const save = useChange<void, unknown>(['guardrail'], async () => {
    const actions = { ...guardrail?.actions, deny: denies, allow_media: allowsMedia };
    const body = JSON.stringify({ name: name.trim(), checks, actions });
    const path = guardrail === undefined ? '/v1/guardrails' : `/v1/guardrails/${guardrail.slug}`;
    const method = guardrail === undefined ? 'POST' : 'PUT';
    const saved = (await (await send(path, { method, headers: jsonHeaders, body })).json()) as { slug: string };
    onSaved(saved.slug);
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <div className="columns">
      <Card title={guardrail === undefined ? 'New guardrail' : `Guardrail ${guardrail.slug}`}>
        <form className="stack" onSubmit={submit}>
          {guardrail === undefined ? (
            <Templates
              onChoose={(template) => {
                setName(template.name);
                setDrafts([template.check]);
                setSamples({ passing: template.passing, failing: template.failing });
              }}
            />
          ) : null}
          <label>
            Name
            <input value={name} required maxLength={200} onChange={(event) => setName(event.target.value)} />
          </label>
          <label>
            Result
            <select
              value={denies ? 'refuse' : 'report'}
              onChange={(event) => setDenies(event.target.value === 'refuse')}
            >
              <option value="refuse">Reject the call (status 446)</option>
              <option value="report">Report the failure and let the call continue (status 246)</option>
            </select>
          </label>
          <Conditions drafts={drafts} setDrafts={setDrafts} verb={denies ? 'Reject' : 'Report'} />
          <label className="check">
            <input type="checkbox" checked={allowsMedia} onChange={(event) => setAllowsMedia(event.target.checked)} />
            Allow images, audio and files without checking them
          </label>
          <p role="status">{guardrailSentence(checks, denies)}</p>
          {save.error === null ? null : <ErrorNote error={save.error} />}
          {mayWrite ? (
            <div className="row">
              <button type="submit" className="primary" disabled={save.isPending || drafts.length === 0}>
                {guardrail === undefined ? 'Create' : 'Save as a new version'}
              </button>
            </div>
          ) : null}
        </form>
      </Card>
      <Samples checks={checks} denies={denies} samples={samples} onChange={setSamples} />
    </div>
  );
}

function Templates({ onChoose }: { onChoose: (template: (typeof templates)[number]) => void }) {
  return (
    <div className="row" role="group" aria-label="Start from a template">
      {templates.map((template) => (
        <button key={template.name} type="button" onClick={() => onChoose(template)}>
          {template.name}
        </button>
      ))}
    </div>
  );
}

function Conditions({
  drafts,
  setDrafts,
  verb,
}: {
  drafts: CheckDraft[];
  setDrafts: (drafts: CheckDraft[]) => void;
  verb: string;
}) {
  return (
    <>
      {drafts.map((draft, index) => (
        <CheckFields
          key={index}
          check={draft}
          index={index}
          start={`${verb} the call when`}
          onChange={(next) => setDrafts(drafts.with(index, next))}
          onRemove={() => setDrafts(drafts.toSpliced(index, 1))}
        />
      ))}
      <div className="row">
        <button type="button" onClick={() => setDrafts([...drafts, { id: 'wordCount', parameters: {} }])}>
          Add a condition
        </button>
      </div>
    </>
  );
}

type SampleTexts = { passing: string; failing: string };

/** Two texts, which are evaluated when the guardrail or a text changes. */
function Samples({
  checks,
  denies,
  samples: { passing, failing },
  onChange,
}: {
  checks: readonly CheckDraft[];
  denies: boolean;
  samples: SampleTexts;
  onChange: (samples: SampleTexts) => void;
}) {
  if (!useMay('chat.write')) return null;
  const refused = denies ? 'rejected' : 'reported';
  return (
    <Card title="Try it">
      <div className="stack">
        <Sample
          label="A message that should pass"
          text={passing}
          checks={checks}
          refused={refused}
          shouldPass
          onChange={(next) => onChange({ passing: next, failing })}
        />
        <Sample
          label={`A message that should be ${refused}`}
          text={failing}
          checks={checks}
          refused={refused}
          shouldPass={false}
          onChange={(next) => onChange({ passing, failing: next })}
        />
        <p className="hint">The gateway checks each text in a call to the simulator. You do not need to save first.</p>
      </div>
    </Card>
  );
}

type Verdict = { verdict: boolean; checks: { id: string; verdict: boolean; data?: Record<string, unknown> }[] };

/** A text is sent after typing has paused for this long. */
const pauseMs = 400;

function Sample({
  label,
  text,
  checks,
  refused,
  shouldPass,
  onChange,
}: {
  label: string;
  text: string;
  checks: readonly CheckDraft[];
  refused: string;
  shouldPass: boolean;
  onChange: (text: string) => void;
}) {
  const now = JSON.stringify([text, checks]);
  const [settled, setSettled] = useState(now);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(now), pauseMs);
    return () => clearTimeout(timer);
  }, [now]);
  const [sentText, sentChecks] = JSON.parse(settled) as [string, CheckDraft[]];
  const judged = useQuery({
    queryKey: ['tried-guardrail', settled],
    queryFn: () => judge(sentText, sentChecks),
    enabled: sentText !== '' && sentChecks.length > 0,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  return (
    <div className="stack">
      <label>
        {label}
        <textarea rows={3} value={text} onChange={(event) => onChange(event.target.value)} />
      </label>
      <div role="status" aria-label={`Result of: ${label}`}>
        {now !== settled || judged.isFetching ? (
          'Checking…'
        ) : judged.error !== null ? (
          <ErrorNote error={judged.error} />
        ) : judged.data === undefined ? (
          'Enter a text to see the result.'
        ) : (
          <SampleResult {...{ ...judged.data, sentChecks, refused, shouldPass }} />
        )}
      </div>
    </div>
  );
}

function SampleResult({
  verdict,
  checks,
  sentChecks,
  refused,
  shouldPass,
}: Verdict & { sentChecks: readonly CheckDraft[]; refused: string; shouldPass: boolean }) {
  const failed = checks.flatMap((check, index) => {
    const sent = sentChecks[index];
    if (check.verdict || sent === undefined) return [];
    const { explanation } = check.data ?? {};
    const reason = conditionOf(sent)?.text ?? `the check ${sent.id} fails`;
    return typeof explanation === 'string' ? `${reason} (${explanation})` : reason;
  });
  return (
    <>
      <Badge tone={verdict === shouldPass ? 'good' : 'bad'}>{verdict ? 'passes' : refused}</Badge>{' '}
      {failed.length === 0 ? null : `because ${failed.join(', and ')}`}
      {verdict === shouldPass ? null : <p>{shouldPass ? 'It should pass.' : `It should be ${refused}.`}</p>}
    </>
  );
}

/** The gateway's own verdict, from a call to the simulator with the checks that are in the form. */
async function judge(text: string, checks: readonly CheckDraft[]): Promise<Verdict> {
  const config = {
    input_guardrails: [
      { id: 'tried', checks: checks.map((check) => ({ ...check, id: `default.${check.id}` })), deny: true },
    ],
  };
  const response = await fetch(`${serverPath}/v1/chat/completions`, {
    method: 'POST',
    headers: {
      ...jsonHeaders,
      'x-sluice-console': '1',
      'x-gateway-strict-open-ai-compliance': 'false',
      'x-gateway-config': ascii(JSON.stringify(config)),
    },
    body: JSON.stringify({
      model: '@simulator/sim-small',
      max_tokens: 1,
      messages: [{ role: 'user', content: text }],
    }),
  });
  const answer = (await response.json()) as {
    hook_results?: { before_request_hooks?: Verdict[] };
    error?: { message: string };
  };
  const [verdict] = answer.hook_results?.before_request_hooks ?? [];
  if (verdict !== undefined) return verdict;
  throw new Error(answer.error?.message ?? `The server returned status ${response.status}.`);
}

/** Headers can only contain ASCII; in JSON, every other character can be escaped. */
const ascii = (json: string): string =>
  json.replaceAll(/[^\x20-\x7e]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);
