import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState, type FormEvent } from 'react';
import { configSchema } from '../../generated/config-schema.ts';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api, send } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { Ago, AsCurl, Card, Empty, ErrorNote, PageHead, Shown } from '../parts/basics.tsx';
import { Confirmed, useChange } from '../parts/changes.tsx';
import { JsonEditor } from '../parts/json-editor.tsx';
import { readObject } from '../parts/read-object.ts';
import { RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';
import { ConfigTree } from './config-tree.tsx';
import { useKnownValues } from './known-values.ts';

type PublicModel = Omit<Answer<'/v1/public-models'>['data'][number], 'object'>;

/** The names that clients send as their model, and the targets that serve them. */
export function Models() {
  const { slug } = useSearch({ strict: false }) as { slug?: string };
  const navigate = useNavigate();
  const open = (next: string | undefined): void =>
    void navigate({ to: '/models', search: next === undefined ? {} : { slug: next } });
  const mayWrite = useMay('public_models.write');
  const models = useQuery({
    queryKey: ['model', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/public-models', { params: { query } }))),
  });
  return (
    <div className="stack">
      <PageHead
        title="Public models"
        text="Clients send the name as their model, without naming a provider. The targets of the model serve the call."
      >
        {mayWrite ? (
          <button type="button" className="primary" onClick={() => open('new')}>
            New public model
          </button>
        ) : null}
      </PageHead>
      <Shown query={models}>
        {({ data, total }) => {
          const chosen = data.find((model) => model.slug === slug);
          return (
            <>
              <Card flush>
                {data.length === 0 ? (
                  <Empty title="No public models yet">
                    <p>
                      Give clients a plain name such as gpt-4o, and change its provider without changing the clients.
                    </p>
                    {mayWrite ? (
                      <button type="button" onClick={() => open('new')}>
                        Create your first public model
                      </button>
                    ) : null}
                  </Empty>
                ) : (
                  <List models={data} total={total} chosen={chosen} onChoose={open} />
                )}
              </Card>
              {slug === 'new' || chosen !== undefined ? (
                <Editor key={`${slug} ${chosen?.last_updated_at}`} model={chosen} onSaved={open} />
              ) : null}
            </>
          );
        }}
      </Shown>
      <AsCurl path="/v1/public-models" />
    </div>
  );
}

const describeTarget = (target: Record<string, unknown>): string => {
  const { provider, virtual_key: key, model, targets } = target as Record<string, string | undefined>;
  if (targets !== undefined) return 'several targets';
  const place = key === undefined ? provider : `@${key.replace(/^@/, '')}`;
  return [place, model].filter((part) => part !== undefined).join('/');
};

function List({
  models,
  total,
  chosen,
  onChoose,
}: {
  models: readonly PublicModel[];
  total: number;
  chosen: PublicModel | undefined;
  onChoose: (slug: string) => void;
}) {
  const mayWrite = useMay('public_models.write');
  return (
    <RecordTable
      label="Public models"
      total={total}
      textOf={({ slug, name, display_name: shown }) => `${slug} ${name} ${shown ?? ''}`}
      rows={models}
      keyOf={({ id }) => id}
      chosen={chosen?.id}
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
        {
          head: 'Targets',
          isLong: true,
          cell: ({ targets }) => targets.map((target, index) => <div key={index}>{describeTarget(target)}</div>),
        },
        { head: 'Callers', cell: ({ allowed }) => (allowed === null ? 'all' : 'some') },
        { head: 'Owner', cell: ({ workspace_id: id }) => (id === null ? 'organisation' : 'this workspace') },
        { head: 'Changed', cell: ({ last_updated_at: at }) => <Ago at={at} /> },
        {
          head: 'Actions',
          cell: (model) => (mayWrite && model.workspace_id !== null ? <Remove model={model} /> : null),
        },
      ]}
    />
  );
}

function Remove({ model: { slug, name } }: { model: PublicModel }) {
  const remove = useChange<void, unknown>(['model'], () =>
    answerOf(api.DELETE('/v1/public-models/{slug}', { params: { path: { slug } } })),
  );
  return (
    <Confirmed text="Delete" question={`Delete the public model ${name}?`} act={remove}>
      Calls with this name will be rejected.
    </Confirmed>
  );
}

/** The members of the document in the editor. A member that it lacks is removed from the record. */
const documentMembers = [
  'targets',
  'strategy',
  'retry',
  'cache',
  'request_timeout',
  'timeouts',
  'capabilities',
  'price',
  'allowed',
] as const;

const starter = { targets: [{ provider: '@simulator', model: 'sim-small' }] };

function readDocument(model: PublicModel | undefined): object {
  if (model === undefined) return starter;
  return Object.fromEntries(documentMembers.flatMap((name) => (model[name] === null ? [] : [[name, model[name]]])));
}

const jsonHeaders = { 'content-type': 'application/json' };

function Editor({ model, onSaved }: { model: PublicModel | undefined; onSaved: (slug: string) => void }) {
  const mayWrite = useMay('public_models.write') && model?.workspace_id !== null;
  const [name, setName] = useState(model?.name ?? '');
  const [description, setDescription] = useState(model?.description ?? '');
  const [text, setText] = useState(JSON.stringify(readDocument(model), null, 2));
  const read = readObject(text);
  const values = useKnownValues();
  const save = useChange<void, unknown>(['model'], async () => {
    if ('problem' in read) throw new Error(read.problem);
    const absent = model === undefined ? [] : documentMembers.filter((member) => member !== 'targets');
    const body = {
      ...Object.fromEntries(absent.map((member) => [member, null])),
      ...read.value,
      name: name.trim(),
      description: description.trim() === '' ? null : description.trim(),
    };
    const path = model === undefined ? '/v1/public-models' : `/v1/public-models/${model.slug}`;
    const method = model === undefined ? 'POST' : 'PUT';
    const response = await send(path, { method, headers: jsonHeaders, body: JSON.stringify(body) });
    onSaved(((await response.json()) as { slug: string }).slug);
  });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <div className="columns">
      <Card title={model === undefined ? 'New public model' : `Public model ${model.name}`}>
        <form className="stack" onSubmit={submit}>
          <label>
            Name
            <input
              value={name}
              required
              maxLength={200}
              placeholder="gpt-4o or openai/*"
              onChange={(event) => setName(event.target.value)}
            />
          </label>
          <label>
            Description
            <input value={description} maxLength={2_000} onChange={(event) => setDescription(event.target.value)} />
          </label>
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
            <span className="hint">
              The members of a config, with a model at each target. Optional: capabilities, price and allowed.
            </span>
          </div>
          {'problem' in read ? <div className="note-box warn">{read.problem}</div> : null}
          {save.error === null ? null : <ErrorNote error={save.error} />}
          {mayWrite ? (
            <div className="row">
              <button type="submit" className="primary" disabled={save.isPending || 'problem' in read}>
                {model === undefined ? 'Create' : 'Save'}
              </button>
            </div>
          ) : null}
        </form>
      </Card>
      {'problem' in read ? null : (
        <Card title="Preview">
          <ConfigTree config={read.value} />
        </Card>
      )}
    </div>
  );
}
