import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState, type FormEvent } from 'react';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api, send } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { Ago, AsCurl, Badge, Card, Code, Empty, ErrorNote, PageHead, Shown } from '../parts/basics.tsx';
import { Confirmed, useChange } from '../parts/changes.tsx';
import { RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { CheckFields, checkText, shortId, toChecks, type CheckDraft } from './check-fields.tsx';

type Guardrail = Omit<Answer<'/v1/guardrails'>['data'][number], 'object'>;

/** Stored guardrails: what each checks, trying it on a text, and where a new one begins. */
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
        text="Checks of what goes into and comes out of calls. Configs, keys and the workspace name them by slug."
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
                      A guardrail refuses calls with secrets in them, answers that are not JSON, models that are not
                      allowed. 17 checks need no other server.
                    </p>
                    {mayWrite ? (
                      <button type="button" onClick={() => open('new')}>
                        Make a first one
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

const checkIds = ({ checks }: Guardrail): string[] => checks.map((check) => shortId(String(check['id'])));

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
        { head: 'Checks', isLong: true, cell: (guardrail) => checkIds(guardrail).map(checkText).join('; ') },
        {
          head: 'If one fails',
          cell: ({ actions }) =>
            actions['deny'] === true ? <Badge tone="bad">refused</Badge> : <Badge tone="warn">reported</Badge>,
        },
        { head: 'Of', cell: ({ workspace_id: id }) => (id === null ? 'the organisation' : 'this workspace') },
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
      It is refused as long as a config, a key or the workspace names it.
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
  const [name, setName] = useState(guardrail?.name ?? '');
  const [denies, setDenies] = useState(guardrail === undefined || guardrail.actions['deny'] === true);
  const [drafts, setDrafts] = useState<CheckDraft[]>(
    guardrail?.checks.map(({ id, parameters }) => ({
      id: shortId(String(id)),
      parameters: (parameters ?? {}) as Record<string, unknown>,
    })) ?? [{ id: 'contains', parameters: { words: ['password'], operator: 'none' } }],
  );
  const checks = toChecks(drafts);
  const save = useChange<void, unknown>(['guardrail'], async () => {
    const body = JSON.stringify({ name: name.trim(), checks, actions: { ...guardrail?.actions, deny: denies } });
    const path = guardrail === undefined ? '/v1/guardrails' : `/v1/guardrails/${guardrail.slug}`;
    const method = guardrail === undefined ? 'POST' : 'PUT';
    const saved = (await (await send(path, { method, headers: jsonHeaders, body })).json()) as { slug: string };
    onSaved(saved.slug);
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    save.mutate();
  };
  const change = (index: number, next: CheckDraft): void =>
    setDrafts(drafts.map((draft, at) => (at === index ? next : draft)));
  return (
    <div className="columns">
      <Card title={guardrail === undefined ? 'New guardrail' : `Guardrail ${guardrail.slug}`}>
        <form className="stack" onSubmit={submit}>
          <label>
            Name
            <input value={name} required maxLength={200} onChange={(event) => setName(event.target.value)} />
          </label>
          {drafts.map((draft, index) => (
            <CheckFields
              key={index}
              check={draft}
              index={index}
              onChange={(next) => change(index, next)}
              onRemove={() => setDrafts(drafts.filter((_draft, at) => at !== index))}
            />
          ))}
          <div className="row">
            <button type="button" onClick={() => setDrafts([...drafts, { id: 'wordCount', parameters: {} }])}>
              Add a check
            </button>
          </div>
          <label className="check">
            <input type="checkbox" checked={denies} onChange={(event) => setDenies(event.target.checked)} />
            Refuse a call whose check fails (446); otherwise it is only reported (246)
          </label>
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
      <Try checks={checks} />
    </div>
  );
}

type Hooks = {
  before_request_hooks?: { verdict: boolean; checks?: { id: string; verdict: boolean; data?: unknown }[] }[];
};

/**
 * Judges a text by the checks as they are in the form: with a call to the simulator, which costs nothing, so that the very code
 * judges that judges calls.
 */
function Try({ checks }: { checks: readonly CheckDraft[] }) {
  const mayCall = useMay('chat.write');
  const [text, setText] = useState('My password is swordfish.');
  const judge = useChange<void, Hooks>([], async () => {
    const config = {
      input_guardrails: [
        { id: 'tried', checks: checks.map((check) => ({ ...check, id: `default.${check.id}` })), deny: true },
      ],
    };
    const response = await fetch('/v1/chat/completions', {
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
    const answer = (await response.json()) as { hook_results?: Hooks; error?: { message: string } };
    if (answer.hook_results !== undefined) return answer.hook_results;
    throw new Error(answer.error?.message ?? `The server answered with ${response.status}.`);
  });
  if (!mayCall) return null;
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    judge.mutate();
  };
  const results = judge.data?.before_request_hooks?.[0];
  return (
    <Card title="Try it">
      <form className="stack" onSubmit={submit}>
        <label>
          A text
          <textarea rows={5} required value={text} onChange={(event) => setText(event.target.value)} />
          <span className="hint">As the message of a call to the simulator; nothing needs to be saved first.</span>
        </label>
        <div className="row">
          <button type="submit" disabled={judge.isPending || checks.length === 0}>
            Judge
          </button>
        </div>
        <div aria-live="polite" className="stack">
          {judge.error === null ? null : <ErrorNote error={judge.error} />}
          {results === undefined ? null : (
            <>
              <div>{results.verdict ? <Badge tone="good">passes</Badge> : <Badge tone="bad">does not pass</Badge>}</div>
              <Code value={results} label="What the checks said" />
            </>
          )}
        </div>
      </form>
    </Card>
  );
}

/** A header takes ASCII only; in JSON every other character can be written as an escape. */
const ascii = (json: string): string =>
  json.replaceAll(/[^\x20-\x7e]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);
