import { useQuery } from '@tanstack/react-query';
import { useSearch } from '@tanstack/react-router';
import { useRef, useState, type FormEvent } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { LogDetails } from '../api/types.ts';
import { serverUrl } from '../api/server-url.ts';
import { AnswerText, streamAnswer, type Answer } from '../parts/answer.tsx';
import { readObject } from '../parts/read-object.ts';
import { snippetsOf } from './call-snippets.ts';
import { Card, Code, Id, PageHead, Shown } from '../parts/basics.tsx';

type Call = {
  model: string;
  config: string;
  system: string;
  prompt: string;
  tokens: string;
  /**
   * The whole body as JSON, without its model: for tools, images and long conversations. null: the body is built from the
   * fields.
   */
  body: string | null;
};

const blank: Call = {
  model: '@simulator/sim-small',
  config: '',
  system: '',
  prompt: '',
  tokens: '256',
  body: null,
};

/** A streamed chat with any target; two targets answer side by side. `from` in the address: a recorded call to repeat. */
export function Playground() {
  const { from } = useSearch({ strict: false }) as { from?: string };
  const log = useQuery({
    queryKey: ['log', from],
    queryFn: () => answerOf(api.GET('/v1/logs/{log_id}', { params: { path: { log_id: from ?? '' } } })),
    enabled: from !== undefined,
    retry: false,
  });
  const text =
    'These are real calls: they count towards the limits of your key, appear in the request log, and are billed by the provider.';
  return (
    <div className="stack">
      <PageHead title="Playground" text={text} />
      {from === undefined ? (
        <Calls start={blank} />
      ) : (
        <Shown query={log}>{(record) => <Calls key={record.id} start={callOf(record)} again={record} />}</Shown>
      )}
    </div>
  );
}

/** A recorded call, as far as its log record contains it. */
function callOf({ model, virtual_key, config, request }: LogDetails): Call {
  const { model: asked, stream: _stream, stream_options: _options, ...body } = request.body ?? {};
  const own = virtual_key === null || config !== null ? (model ?? '') : `@${virtual_key}/${model ?? ''}`;
  return {
    ...blank,
    model: typeof asked === 'string' && asked.startsWith('@') ? asked : own,
    config: config?.slug ?? '',
    body: request.body === null ? null : JSON.stringify(body, null, 2),
  };
}

function Calls({ start, again }: { start: Call; again?: LogDetails }) {
  const [call, setCall] = useState(start);
  const [second, setSecond] = useState<string | null>(null);
  const [answers, setAnswers] = useState<(Answer | null)[]>([]);
  const stop = useRef<AbortController | null>(null);
  const isRunning = answers.some((answer) => answer?.state === 'running');
  const targets = second === null ? [call.model] : [call.model, second];
  const read = call.body === null ? null : readObject(call.body);
  const problem = read !== null && 'problem' in read ? read.problem : null;
  const run = (event: FormEvent): void => {
    event.preventDefault();
    const stopping = new AbortController();
    stop.current = stopping;
    setAnswers(targets.map(() => null));
    targets.forEach((model, index) => {
      const show = (answer: Answer): void =>
        setAnswers((before) => before.map((old, at) => (at === index ? answer : old)));
      const headers = call.config === '' ? {} : { 'x-gateway-config': call.config };
      const sent = { path: '/v1/chat/completions', body: bodyOf({ ...call, model }), headers };
      void streamAnswer(sent, stopping.signal, show);
    });
  };
  return (
    <>
      {again === undefined ? null : (
        <p className="muted">
          Based on request <Id id={again.id} />
          {again.request.body === null
            ? ', whose body was not recorded. Enter it again.'
            : '. Edit it and send it again.'}
        </p>
      )}
      <form className="stack" onSubmit={run}>
        <Card>
          <div className="stack">
            <Targets call={call} setCall={setCall} second={second} setSecond={setSecond} />
            {call.body === null ? (
              <Fields call={call} setCall={setCall} />
            ) : (
              <BodyField call={call} setCall={setCall} />
            )}
            {problem === null ? null : <div className="note-box warn">{problem}</div>}
            <div className="row">
              <button type="submit" className="primary" disabled={isRunning || problem !== null}>
                Send
              </button>
              <button
                type="button"
                disabled={problem !== null}
                onClick={() => setCall(call.body === null ? asBody(call) : { ...call, body: null })}
              >
                {call.body === null ? 'Edit the body as JSON' : 'Back to the form'}
              </button>
              {isRunning ? (
                <button type="button" onClick={() => stop.current?.abort()}>
                  Stop
                </button>
              ) : null}
            </div>
          </div>
        </Card>
      </form>
      <div className="columns" aria-live="polite">
        {answers.map((answer, index) => (
          <Card key={index} title={targets[index] ?? ''}>
            {answer === null ? <p className="muted">Waiting…</p> : <AnswerText answer={answer} />}
          </Card>
        ))}
      </div>
      {problem === null ? <Snippets call={call} /> : null}
    </>
  );
}

type CallDraft = { call: Call; setCall: (call: Call) => void };

/** Where the call goes: one model, or two that are compared. */
function Targets({
  call,
  setCall,
  second,
  setSecond,
}: CallDraft & { second: string | null; setSecond: (model: string | null) => void }) {
  return (
    <div className="filters">
      <ModelField label="Model" value={call.model} onChange={(model) => setCall({ ...call, model })} />
      {second === null ? (
        <button type="button" onClick={() => setSecond(call.model)}>
          Compare with another model
        </button>
      ) : (
        <>
          <ModelField label="Second model" value={second} onChange={setSecond} />
          <button type="button" onClick={() => setSecond(null)}>
            Remove second model
          </button>
        </>
      )}
      <label>
        Config
        <input
          value={call.config}
          placeholder="none"
          onChange={(event) => setCall({ ...call, config: event.target.value.trim() })}
        />
      </label>
      <label>
        Max. tokens
        <input
          type="number"
          min={1}
          value={call.tokens}
          onChange={(event) => setCall({ ...call, tokens: event.target.value })}
        />
      </label>
    </div>
  );
}

function BodyField({ call, setCall }: CallDraft) {
  return (
    <label>
      Body as JSON, without the model
      <textarea
        rows={14}
        required
        spellCheck={false}
        className="code"
        value={call.body ?? ''}
        onChange={(event) => setCall({ ...call, body: event.target.value })}
      />
    </label>
  );
}

function Fields({ call, setCall }: CallDraft) {
  return (
    <>
      <label>
        System
        <textarea
          rows={2}
          value={call.system}
          placeholder="Answer in one sentence."
          onChange={(event) => setCall({ ...call, system: event.target.value })}
        />
      </label>
      <label>
        Message
        <textarea
          rows={4}
          required
          value={call.prompt}
          placeholder="Why is the sky blue?"
          onChange={(event) => setCall({ ...call, prompt: event.target.value })}
        />
      </label>
    </>
  );
}

/** Converts the fields to a JSON body, with an example tool. */
function asBody(call: Call): Call {
  const { model: _model, ...body } = bodyOf({ ...call, prompt: call.prompt || 'How warm is it in Oslo?' });
  const tool = {
    type: 'function',
    function: {
      name: 'temperature',
      description: 'Returns the temperature of a city',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  };
  return { ...call, body: JSON.stringify({ ...body, tools: [tool] }, null, 2) };
}

export function ModelField({
  label,
  value,
  onChange,
}: {
  label: string;
  value: string;
  onChange: (model: string) => void;
}) {
  const models = useQuery({
    queryKey: ['model', 'list'],
    queryFn: () => answerOf(api.GET('/v1/models')),
    retry: false,
  });
  return (
    <label>
      {label}
      <input list="models" size={28} required value={value} onChange={(event) => onChange(event.target.value.trim())} />
      <datalist id="models">
        {(models.data?.data ?? []).map(({ id }) => (
          <option key={id} value={id} />
        ))}
      </datalist>
    </label>
  );
}

function bodyOf({ model, system, prompt, tokens, body }: Call): Record<string, unknown> {
  if (body !== null) return { model, ...(JSON.parse(body) as object) };
  const messages = [...(system === '' ? [] : [{ role: 'system', content: system }]), { role: 'user', content: prompt }];
  return { model, messages, max_tokens: Number(tokens) || 256 };
}

/** The same call as code. */
function Snippets({ call }: { call: Call }) {
  const body = bodyOf({ ...call, prompt: call.prompt || 'Why is the sky blue?' });
  const config = call.config === '' ? null : call.config;
  const { curl, typescript, python } = snippetsOf({ body, base: `${serverUrl()}/v1`, config });
  return (
    <details>
      <summary>The same call in code</summary>
      <div className="columns">
        <Code value={curl} label="curl" />
        <Code value={typescript} label="TypeScript" />
        <Code value={python} label="Python" />
      </div>
    </details>
  );
}
