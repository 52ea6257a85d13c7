import { useQuery } from '@tanstack/react-query';
import { Link, useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import { Ago, AsCurl, Card, Empty, ErrorNote, PageHead, Shown } from '../parts/basics.tsx';
import { FormDialog, useChange } from '../parts/changes.tsx';
import { RecordTable } from '../parts/table.tsx';
import { useMay } from '../session.tsx';

const firstTemplate = [
  { role: 'system', content: 'You answer {{customer}} kindly, in at most three sentences.' },
  { role: 'user', content: '{{question}}' },
];

/** All prompts; if there are none, explains how to create the first one. */
export function Prompts() {
  const prompts = useQuery({
    queryKey: ['prompt', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/prompts', { params: { query } }))),
  });
  const mayWrite = useMay('prompts.write');
  return (
    <div className="stack">
      <PageHead
        title="Prompts"
        text="Programs call a prompt with variables. You edit its text here, in versions, without releasing the program."
      >
        {mayWrite ? <NewPrompt /> : null}
      </PageHead>
      <Card flush>
        <Shown query={prompts}>
          {({ data, total }) =>
            data.length === 0 ? (
              <Empty title="No prompts yet">
                <p>Create an example that replies to a customer. It uses the simulator, whose costs are not billed.</p>
                {mayWrite ? <FirstPrompt /> : null}
              </Empty>
            ) : (
              <RecordTable
                label="Prompts"
                total={total}
                textOf={({ slug, name, model }) => `${slug} ${name} ${model}`}
                rows={data}
                keyOf={({ id }) => id}
                columns={[
                  {
                    head: 'Name',
                    isLong: true,
                    cell: ({ slug, name }) => (
                      <Link to="/prompts/$slug" params={{ slug }}>
                        {name}
                      </Link>
                    ),
                  },
                  { head: 'Slug', isLong: true, cell: ({ slug }) => <code>{slug}</code> },
                  { head: 'Model', isLong: true, cell: ({ model }) => <code>{model ?? 'set by the request'}</code> },
                  { head: 'In use', cell: ({ prompt_version: version }) => `version ${version}` },
                  { head: 'Newest', cell: ({ last_version: version }) => `version ${version}` },
                  { head: 'Changed', cell: ({ last_updated_at: at }) => <Ago at={at} /> },
                ]}
              />
            )
          }
        </Shown>
      </Card>
      <AsCurl path="/v1/prompts" />
    </div>
  );
}

type NewPromptBody = { name: string; virtual_key: string | null; model: string };

function useCreate() {
  const navigate = useNavigate();
  return useChange<NewPromptBody, unknown>(['prompt'], async (prompt) => {
    const body = { ...prompt, string: JSON.stringify(firstTemplate), parameters: { max_tokens: 256 } };
    const { slug } = await answerOf(api.POST('/v1/prompts', { body }));
    await navigate({ to: '/prompts/$slug', params: { slug } });
  });
}

function FirstPrompt() {
  const create = useCreate();
  return (
    <>
      <button
        type="button"
        className="primary"
        disabled={create.isPending}
        onClick={() => create.mutate({ name: 'Support reply', virtual_key: 'simulator', model: 'sim-small' })}
      >
        Create your first prompt
      </button>
      {create.error === null ? null : <ErrorNote error={create.error} />}
    </>
  );
}

function NewPrompt() {
  const [name, setName] = useState('');
  const create = useCreate();
  const submit = useChange<void, unknown>([], () =>
    create.mutateAsync({ name: name.trim(), virtual_key: 'simulator', model: 'sim-small' }),
  );
  return (
    <FormDialog primary text="New prompt" title="New prompt" submit="Create" act={submit}>
      <label>
        Name
        <input value={name} onChange={(event) => setName(event.target.value)} required maxLength={200} />
        <span className="hint">The slug is derived from the name. You edit the text and model on the next page.</span>
      </label>
    </FormDialog>
  );
}
