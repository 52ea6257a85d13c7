import { useQuery } from '@tanstack/react-query';
import { useNavigate, useParams } from '@tanstack/react-router';
import { useState, type FormEvent } from 'react';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { AnswerText, useAnswer } from '../parts/answer.tsx';
import { Ago, AsCurl, Badge, Card, Code, Empty, ErrorNote, PageHead, Shown } from '../parts/basics.tsx';
import { Confirmed, useChange } from '../parts/changes.tsx';
import { DataTable } from '../parts/table.tsx';
import { TextDiff } from '../parts/text-diff.tsx';
import { useMay } from '../session.tsx';
import { readable, toMessages, variablesOf, type Message } from './prompt-text.ts';

type Prompt = Answer<'/v1/prompts/{slug}'>;
type Version = Omit<Answer<'/v1/prompts/{slug}/versions'>[number], 'object'>;

const promptQuery = (slug: string) => ({
  queryKey: ['prompt', 'list', slug],
  queryFn: () => answerOf(api.GET('/v1/prompts/{slug}', { params: { path: { slug } } })),
});
const versionsQuery = (slug: string) => ({
  queryKey: ['prompt', 'list', slug, 'versions'],
  queryFn: () =>
    answerOf(api.GET('/v1/prompts/{slug}/versions', { params: { path: { slug }, query: { limit: 100 } } })),
});

/** One prompt: its text, its versions with their differences, and its answers. */
export function PromptPage() {
  const { slug } = useParams({ strict: false }) as { slug: string };
  const prompt = useQuery(promptQuery(slug));
  const versions = useQuery(versionsQuery(slug));
  const [chosen, setChosen] = useState<number | null>(null);
  return (
    <div className="stack">
      <Shown query={prompt}>
        {(current) => (
          <Shown query={versions}>
            {(all) => {
              const shown = all.find(({ prompt_version: version }) => version === (chosen ?? current.last_version));
              return (
                <>
                  <Head prompt={current} />
                  <div className="columns">
                    {shown === undefined ? null : (
                      <Editor
                        key={`text ${shown.prompt_version}`}
                        slug={slug}
                        version={shown}
                        onSaved={() => setChosen(null)}
                      />
                    )}
                    {shown === undefined ? null : (
                      <Try key={`try ${shown.prompt_version}`} slug={slug} version={shown} />
                    )}
                  </div>
                  <Versions
                    prompt={current}
                    versions={all}
                    shown={shown?.prompt_version ?? null}
                    onChoose={setChosen}
                  />
                </>
              );
            }}
          </Shown>
        )}
      </Shown>
      <AsCurl path={`/v1/prompts/${slug}/completions`} method="POST" body={{ variables: {} }} />
    </div>
  );
}

function Head({ prompt: { name, slug, prompt_version: inUse, last_version: last } }: { prompt: Prompt }) {
  const navigate = useNavigate();
  const mayWrite = useMay('prompts.write');
  const remove = useChange<void, unknown>(['prompt'], async () => {
    await answerOf(api.DELETE('/v1/prompts/{slug}', { params: { path: { slug } } }));
    await navigate({ to: '/prompts' });
  });
  return (
    <PageHead
      title={name}
      text={
        <>
          <code>{slug}</code>, version {inUse} is in use{last > inUse ? `, ${last - inUse} newer not published` : ''}
        </>
      }
    >
      {mayWrite ? (
        <Confirmed text="Delete" question={`Delete the prompt ${slug}?`} act={remove}>
          Programs that use it will get an error. Batches that have started keep their version.
        </Confirmed>
      ) : null}
    </PageHead>
  );
}

type Draft = { template: string; model: string; virtualKey: string; parameters: string; description: string };

/** The text of one version; saving creates a new version, no matter which one was shown. */
function Editor({ slug, version, onSaved }: { slug: string; version: Version; onSaved: () => void }) {
  const mayWrite = useMay('prompts.write');
  const [draft, setDraft] = useState<Draft>({
    template: version.string,
    model: version.model ?? '',
    virtualKey: version.virtual_key ?? '',
    parameters: JSON.stringify(version.parameters, null, 2),
    description: '',
  });
  const set = (change: Partial<Draft>): void => setDraft({ ...draft, ...change });
  const messages = toMessages(draft.template);
  const save = useChange<void, unknown>(['prompt'], async () => {
    await answerOf(
      api.PUT('/v1/prompts/{slug}', {
        params: { path: { slug } },
        body: {
          patch: true,
          string: draft.template,
          model: draft.model.trim() || null,
          virtual_key: draft.virtualKey.trim() || null,
          parameters: readParameters(draft.parameters),
          version_description: draft.description.trim() || null,
        },
      }),
    );
    onSaved();
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <Card title={`Text of version ${version.prompt_version}`}>
      <form className="stack" onSubmit={submit}>
        {messages === null ? (
          <label>
            Template
            <textarea
              className="code"
              rows={12}
              value={draft.template}
              onChange={(event) => set({ template: event.target.value })}
            />
          </label>
        ) : (
          <Messages messages={messages} onChange={(next) => set({ template: JSON.stringify(next) })} />
        )}
        <div className="filters">
          <label>
            Virtual key
            <input
              value={draft.virtualKey}
              placeholder="set by the request"
              onChange={(event) => set({ virtualKey: event.target.value })}
            />
          </label>
          <label>
            Model
            <input
              value={draft.model}
              placeholder="set by the request"
              onChange={(event) => set({ model: event.target.value })}
            />
          </label>
        </div>
        <label>
          Parameters
          <textarea
            className="code"
            rows={4}
            value={draft.parameters}
            onChange={(event) => set({ parameters: event.target.value })}
          />
          <span className="hint">Request parameters as JSON: temperature, max_tokens, response_format, …</span>
        </label>
        {mayWrite ? (
          <>
            <label>
              What changed
              <input
                value={draft.description}
                maxLength={500}
                placeholder="describe the change"
                onChange={(event) => set({ description: event.target.value })}
              />
            </label>
            {save.error === null ? null : <ErrorNote error={save.error} />}
            <div className="row">
              <button type="submit" className="primary" disabled={save.isPending}>
                Save as a new version
              </button>
              <span className="muted small">Publish the version below to use it.</span>
            </div>
          </>
        ) : null}
      </form>
    </Card>
  );
}

/** Throws an Error that describes the problem with the text. */
function readParameters(text: string): Record<string, unknown> {
  try {
    const value = JSON.parse(text.trim() || '{}') as unknown;
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch (error) {
    throw new Error(`The parameters are not valid JSON: ${(error as Error).message}`, { cause: error });
  }
  throw new Error('The parameters must be a JSON object, such as {"temperature": 0.2}.');
}

const roles = ['system', 'developer', 'user', 'assistant'];

function Messages({ messages, onChange }: { messages: Message[]; onChange: (messages: Message[]) => void }) {
  const change = (index: number, next: Partial<Message>): void =>
    onChange(messages.map((message, at) => (at === index ? { ...message, ...next } : message)));
  return (
    <>
      {messages.map(({ role, content }, index) => (
        <div key={index} className="message-row">
          <select
            aria-label={`Role of message ${index + 1}`}
            value={role}
            onChange={(event) => change(index, { role: event.target.value })}
          >
            {[...new Set([...roles, role])].map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
          <textarea
            aria-label={`Text of message ${index + 1}`}
            rows={Math.min(14, 2 + content.split('\n').length)}
            value={content}
            onChange={(event) => change(index, { content: event.target.value })}
          />
          <button
            type="button"
            className="plain"
            aria-label={`Remove message ${index + 1}`}
            disabled={messages.length === 1}
            onClick={() => onChange(messages.filter((_message, at) => at !== index))}
          >
            ✕
          </button>
        </div>
      ))}
      <div className="row">
        <button type="button" onClick={() => onChange([...messages, { role: 'user', content: '' }])}>
          Add a message
        </button>
        <span className="muted small">
          {'{{name}}'} is a variable, {'{{>slug}}'} a partial.
        </span>
      </div>
    </>
  );
}

/** Calls a version with variables, as a program would. */
function Try({ slug, version }: { slug: string; version: Version }) {
  const mayCall = useMay('chat.write');
  const names = variablesOf(version.string);
  const [values, setValues] = useState<Record<string, string>>({});
  const { answer, run, stop } = useAnswer();
  const variables = Object.fromEntries(names.map((name) => [name, values[name] ?? '']));
  const name = `${slug}@${version.prompt_version}`;
  const path = `/v1/prompts/${name}/completions`;
  const render = useChange<void, unknown>([], () =>
    answerOf(api.POST('/v1/prompts/{slug}/render', { params: { path: { slug: name } }, body: { variables } })),
  );
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    run(path, { variables });
  };
  return (
    <Card title={`Try version ${version.prompt_version}`}>
      <form className="stack" onSubmit={submit}>
        {names.length === 0 ? <p className="muted">This version has no variables.</p> : null}
        {names.map((each) => (
          <label key={each}>
            {each}
            <textarea
              rows={2}
              value={values[each] ?? ''}
              onChange={(event) => setValues({ ...values, [each]: event.target.value })}
            />
          </label>
        ))}
        <div className="row">
          {mayCall ? (
            <button type="submit" className="primary" disabled={answer?.state === 'running'}>
              Send
            </button>
          ) : null}
          <button type="button" onClick={() => render.mutate()}>
            Show the request
          </button>
          {answer?.state === 'running' ? (
            <button type="button" onClick={stop}>
              Stop
            </button>
          ) : null}
        </div>
        <div aria-live="polite" className="stack">
          {answer === null ? null : <AnswerText answer={answer} />}
        </div>
        {render.error === null ? null : <ErrorNote error={render.error} />}
        {render.data === undefined ? null : <Code value={(render.data as { data: unknown }).data} label="Request" />}
      </form>
    </Card>
  );
}

function Versions({
  prompt,
  versions,
  shown,
  onChoose,
}: {
  prompt: Prompt;
  versions: readonly Version[];
  shown: number | null;
  onChoose: (version: number) => void;
}) {
  const mayWrite = useMay('prompts.write');
  const [before, setBefore] = useState<number | null>(null);
  const publish = useChange(['prompt'], (version: number) =>
    answerOf(api.PUT('/v1/prompts/{slug}/makeDefault', { params: { path: { slug: prompt.slug } }, body: { version } })),
  );
  const first = versions.find(({ prompt_version: version }) => version === (before ?? prompt.prompt_version));
  const second = versions.find(({ prompt_version: version }) => version === shown);
  const isSame = first === undefined || second === undefined || first.prompt_version === second.prompt_version;
  return (
    <>
      <Card title="Versions" flush>
        {publish.error === null ? null : <ErrorNote error={publish.error} />}
        <DataTable
          label="Versions"
          rows={versions}
          keyOf={({ prompt_version: version }) => String(version)}
          chosen={String(shown)}
          columns={[
            {
              head: 'Version',
              cell: ({ prompt_version: version }) => (
                <button type="button" className="plain" onClick={() => onChoose(version)}>
                  {version}
                </button>
              ),
            },
            {
              head: 'State',
              cell: ({ prompt_version: version }) =>
                version === prompt.prompt_version ? <Badge tone="good">in use</Badge> : null,
            },
            { head: 'What changed', cell: ({ prompt_version_description: text }) => text ?? '–' },
            { head: 'Label', cell: (version) => <VersionLabel slug={prompt.slug} version={version} /> },
            { head: 'Created', cell: ({ created_at: at }) => <Ago at={at} /> },
            {
              head: 'Actions',
              cell: ({ prompt_version: version }) => (
                <div className="row">
                  {mayWrite && version !== prompt.prompt_version ? (
                    <button
                      type="button"
                      className="plain"
                      aria-label={`Publish version ${version}`}
                      onClick={() => publish.mutate(version)}
                    >
                      Publish
                    </button>
                  ) : null}
                  <button
                    type="button"
                    className="plain"
                    aria-label={`Compare with version ${version}`}
                    onClick={() => setBefore(version)}
                  >
                    Compare
                  </button>
                </div>
              ),
            },
          ]}
        />
      </Card>
      {isSame ? null : (
        <Card title={`From version ${first.prompt_version} to ${second.prompt_version}`}>
          <TextDiff before={whole(first)} after={whole(second)} label="Differences" />
        </Card>
      )}
    </>
  );
}

/** The complete content of a version, for comparison. */
const whole = ({
  string: template,
  model,
  virtual_key: key,
  config,
  parameters,
  tools,
  tool_choice: choice,
}: Version): string =>
  [
    readable(template),
    `model: ${model ?? 'set by the request'}`,
    `virtual key: ${key ?? 'set by the request'}`,
    `config: ${config ?? 'none'}`,
    `parameters: ${JSON.stringify(parameters, null, 2)}`,
    `tools: ${JSON.stringify(tools, null, 2)}`,
    `tool_choice: ${JSON.stringify(choice)}`,
    '',
  ].join('\n');

function VersionLabel({ slug, version }: { slug: string; version: Version }) {
  const mayRead = useMay('labels.read');
  const mayWrite = useMay('prompts.write');
  const labels = useQuery({
    queryKey: ['label', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/labels', { params: { query } }))),
    enabled: mayRead,
  });
  const set = useChange(['prompt'], (labelId: string | null) =>
    answerOf(
      api.PUT('/v1/prompts/{slug}/versions/{version}', {
        params: { path: { slug, version: String(version.prompt_version) } },
        body: { label_id: labelId },
      }),
    ),
  );
  const all = labels.data?.data ?? [];
  const current = version.prompt_version_label_id;
  if (all.length === 0) return <span className="muted">–</span>;
  if (!mayWrite) return <>{all.find(({ id }) => id === current)?.name ?? '–'}</>;
  return (
    <>
      <select
        aria-label={`Label of version ${version.prompt_version}`}
        value={current ?? ''}
        onChange={(event) => set.mutate(event.target.value || null)}
      >
        <option value="">none</option>
        {all.map(({ id, name }) => (
          <option key={id} value={id}>
            {name}
          </option>
        ))}
      </select>
      {set.error === null ? null : <Empty title={set.error.message} />}
    </>
  );
}
