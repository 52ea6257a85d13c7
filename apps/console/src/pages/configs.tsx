import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState, type FormEvent } from 'react';
import { configSchema } from '../../generated/config-schema.ts';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api, send } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { Ago, AsCurl, Badge, Card, Empty, ErrorNote, PageHead, Shown } from '../parts/basics.tsx';
import { Confirmed, useChange } from '../parts/changes.tsx';
import { JsonEditor } from '../parts/json-editor.tsx';
import { readObject } from '../parts/read-object.ts';
import { DataTable, RecordTable } from '../parts/table.tsx';
import { TextDiff } from '../parts/text-diff.tsx';
import { useMay } from '../session.tsx';
import { ConfigTree } from './config-tree.tsx';
import { useKnownValues } from './known-values.ts';

type Config = Omit<Answer<'/v1/configs'>['data'][number], 'object'>;

const starters: Readonly<Record<string, { text: string; config: object }>> = {
  fallback: {
    text: 'Fallback: a second target when the first one fails',
    config: {
      strategy: { mode: 'fallback', on_status_codes: [429, 500, 502, 503, 504] },
      targets: [
        { provider: '@simulator', override_params: { model: 'sim-large' }, retry: { attempts: 2 } },
        { provider: '@simulator', override_params: { model: 'sim-small' } },
      ],
    },
  },
  split: {
    text: 'Load balancing: one call in ten goes to another model',
    config: {
      strategy: { mode: 'loadbalance' },
      targets: [
        { provider: '@simulator', override_params: { model: 'sim-small' }, weight: 9 },
        { provider: '@simulator', override_params: { model: 'sim-large' }, weight: 1 },
      ],
    },
  },
  conditions: {
    text: 'Conditions: metadata selects the large model',
    config: {
      strategy: {
        mode: 'conditional',
        conditions: [JSON.parse('{"query": {"metadata.tier": {"$eq": "gold"}}, "then": "large"}') as object],
        default: 'small',
      },
      targets: [
        { name: 'large', provider: '@simulator', override_params: { model: 'sim-large' } },
        { name: 'small', provider: '@simulator', override_params: { model: 'sim-small' } },
      ],
    },
  },
  cache: {
    text: 'One target, with a cache and retries',
    config: {
      provider: '@simulator',
      cache: { mode: 'simple', max_age: 3_600 },
      retry: { attempts: 3 },
    },
  },
};

/** Stored configs: the document, a diagram of it, the result of an example call, and its versions. */
export function Configs() {
  const { slug } = useSearch({ strict: false }) as { slug?: string };
  const navigate = useNavigate();
  const open = (next: string | undefined): void =>
    void navigate({ to: '/configs', search: next === undefined ? {} : { slug: next } });
  const mayWrite = useMay('configs.write');
  const configs = useQuery({
    queryKey: ['config', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/configs', { params: { query } }))),
  });
  return (
    <div className="stack">
      <PageHead
        title="Configs"
        text="A config sets where calls go and which retries, fallbacks, caching and guardrails apply. Select one with the header x-gateway-config or as the default of a key. A batch keeps the version that it started with."
      >
        {mayWrite ? (
          <button type="button" className="primary" onClick={() => open('new')}>
            New config
          </button>
        ) : null}
      </PageHead>
      <Shown query={configs}>
        {({ data, total }) => {
          const chosen = data.find((config) => config.slug === slug);
          return (
            <>
              <Card flush>
                {data.length === 0 ? (
                  <Empty title="No configs yet">
                    <p>
                      Set up fallbacks, load balancing, conditions, caching, retries and guardrails without changing
                      your programs.
                    </p>
                    {mayWrite ? (
                      <button type="button" onClick={() => open('new')}>
                        Create your first config
                      </button>
                    ) : null}
                  </Empty>
                ) : (
                  <RecordTable
                    label="Configs"
                    total={total}
                    textOf={({ slug, name }) => `${slug} ${name}`}
                    rows={data}
                    keyOf={({ id }) => id}
                    chosen={chosen?.id}
                    columns={[
                      {
                        head: 'Name',
                        isLong: true,
                        cell: (config) => (
                          <button type="button" className="link" onClick={() => open(config.slug)}>
                            {config.name}
                          </button>
                        ),
                      },
                      { head: 'Slug', isLong: true, cell: (config) => <code>{config.slug}</code> },
                      { head: 'Version', cell: ({ version }) => version, isNumber: true },
                      { head: 'Changed', cell: ({ last_updated_at: at }) => <Ago at={at} /> },
                      { head: 'Actions', cell: (config) => (mayWrite ? <Remove config={config} /> : null) },
                    ]}
                  />
                )}
              </Card>
              {slug === 'new' || chosen !== undefined ? (
                <Editor key={`${slug} ${chosen?.version}`} config={chosen} onSaved={open} />
              ) : null}
              {chosen === undefined ? null : <Versions config={chosen} />}
            </>
          );
        }}
      </Shown>
      <AsCurl path="/v1/configs" />
    </div>
  );
}

function Remove({ config: { slug } }: { config: Config }) {
  const remove = useChange<void, unknown>(['config'], () =>
    answerOf(api.DELETE('/v1/configs/{slug}', { params: { path: { slug } } })),
  );
  return (
    <Confirmed text="Delete" question={`Delete the config ${slug}?`} act={remove}>
      Calls that use it will be rejected. Batches that have started keep it.
    </Confirmed>
  );
}

const printed = (value: unknown): string => JSON.stringify(value, null, 2);

const jsonHeaders = { 'content-type': 'application/json' };

function Editor({ config, onSaved }: { config: Config | undefined; onSaved: (slug: string | undefined) => void }) {
  const mayWrite = useMay('configs.write');
  const [name, setName] = useState(config?.name ?? '');
  const [text, setText] = useState(printed(config?.config ?? starters['fallback']?.config ?? {}));
  const read = readObject(text);
  const values = useKnownValues();
  const save = useChange<void, unknown>(['config'], async () => {
    if ('problem' in read) throw new Error(read.problem);
    const path = config === undefined ? '/v1/configs' : `/v1/configs/${config.slug}`;
    const method = config === undefined ? 'POST' : 'PUT';
    const body = JSON.stringify({ name: name.trim(), config: read.value });
    const saved = (await (await send(path, { method, headers: jsonHeaders, body })).json()) as { slug?: string };
    onSaved(saved.slug ?? config?.slug);
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <div className="columns">
      <Card title={config === undefined ? 'New config' : `Config ${config.slug}`}>
        <form className="stack" onSubmit={submit}>
          <label>
            Name
            <input value={name} required maxLength={200} onChange={(event) => setName(event.target.value)} />
          </label>
          {config === undefined ? (
            <label>
              Start from
              <select
                defaultValue="fallback"
                onChange={(event) => setText(printed(starters[event.target.value]?.config))}
              >
                {Object.entries(starters).map(([key, starter]) => (
                  <option key={key} value={key}>
                    {starter.text}
                  </option>
                ))}
              </select>
            </label>
          ) : null}
          <div className="field">
            <span>Document</span>
            <JsonEditor
              label="Document"
              value={text}
              onChange={setText}
              schema={configSchema}
              values={values}
              isInvalid={'problem' in read}
            />
            <span className="hint">Press Ctrl-Space for suggestions.</span>
          </div>
          {'problem' in read ? <div className="note-box warn">{read.problem}</div> : null}
          {save.error === null ? null : <ErrorNote error={save.error} />}
          {mayWrite ? (
            <div className="row">
              <button type="submit" className="primary" disabled={save.isPending || 'problem' in read}>
                {config === undefined ? 'Create' : 'Save as a new version'}
              </button>
            </div>
          ) : null}
        </form>
      </Card>
      <div className="stack">
        {'problem' in read ? null : (
          <Card title="Preview">
            <ConfigTree config={read.value} />
          </Card>
        )}
        {'problem' in read ? null : <Explain config={read.value} />}
      </div>
    </div>
  );
}

type Explanation = { text: string[]; config: unknown };

/** Shows how a call would be processed with the document that is in the form. */
function Explain({ config }: { config: Record<string, unknown> }) {
  const [model, setModel] = useState('@simulator/sim-small');
  const [metadata, setMetadata] = useState('{"tier": "gold"}');
  const explain = useChange<void, Explanation>([], async () => {
    const tags = metadata.trim() === '' ? {} : readObject(metadata);
    if ('problem' in tags) throw new Error(`Metadata: ${String(tags.problem)}`);
    const body = { config, body: { model }, ...('value' in tags ? { metadata: tags.value } : {}) };
    const response = await send('/v1/configs/explain', {
      method: 'POST',
      headers: jsonHeaders,
      body: JSON.stringify(body),
    });
    return (await response.json()) as Explanation;
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    explain.mutate();
  };
  return (
    <Card title="Explain a call">
      <form className="stack" onSubmit={submit}>
        <div className="filters">
          <label>
            Model
            <input value={model} onChange={(event) => setModel(event.target.value)} />
          </label>
          <label>
            Metadata
            <input value={metadata} onChange={(event) => setMetadata(event.target.value)} />
          </label>
          <button type="submit" disabled={explain.isPending}>
            Explain
          </button>
        </div>
        <div aria-live="polite">
          {explain.error === null ? null : <ErrorNote error={explain.error} />}
          {explain.data === undefined ? null : (
            <pre className="code-box" aria-label="Steps of the call">
              {explain.data.text.join('\n')}
            </pre>
          )}
        </div>
        <p className="hint">Uses the real routing code. No call is made.</p>
      </form>
    </Card>
  );
}

function Versions({ config }: { config: Config }) {
  const [before, setBefore] = useState<number | null>(null);
  const versions = useQuery({
    queryKey: ['config', 'list', config.slug, 'versions'],
    queryFn: () =>
      answerOf(
        api.GET('/v1/configs/{slug}/versions', { params: { path: { slug: config.slug }, query: { limit: 100 } } }),
      ),
  });
  return (
    <Shown query={versions}>
      {({ data }) => {
        const chosen = data.find(({ version }) => version === before);
        return (
          <>
            <Card title="Versions" flush>
              <DataTable
                label="Versions"
                rows={data}
                keyOf={({ version }) => String(version)}
                columns={[
                  { head: 'Version', cell: ({ version }) => version, isNumber: true },
                  {
                    head: 'State',
                    cell: ({ version }) => (version === config.version ? <Badge tone="good">in use</Badge> : null),
                  },
                  { head: 'Created', cell: ({ created_at: at }) => <Ago at={at} /> },
                  {
                    head: 'Actions',
                    cell: ({ version }) =>
                      version === config.version ? null : (
                        <button
                          type="button"
                          className="plain"
                          aria-label={`Compare version ${version}`}
                          onClick={() => setBefore(version)}
                        >
                          Compare
                        </button>
                      ),
                  },
                ]}
              />
            </Card>
            {chosen === undefined ? null : (
              <Card title={`From version ${chosen.version} to ${config.version}`}>
                <TextDiff before={printed(chosen.config)} after={printed(config.config)} label="Differences" />
              </Card>
            )}
          </>
        );
      }}
    </Shown>
  );
}
