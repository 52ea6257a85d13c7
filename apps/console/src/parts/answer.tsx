import { Link } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { send } from '../api/client.ts';
import { milliseconds } from '../format.ts';
import { ErrorNote } from './basics.tsx';

type ToolCall = { name: string; arguments: string };

/** The part of an answer that has arrived. */
export type Answer = {
  text: string;
  /** The tools that the model calls. */
  tools: readonly ToolCall[];
  /** The trace ID in the request log; null until the answer has begun. */
  traceId: string | null;
  state: 'running' | 'done' | 'failed';
  error: unknown;
  tookMs: number;
  firstMs: number | null;
};

export const AnswerText = ({ answer: { text, tools, traceId, error, state, tookMs, firstMs } }: { answer: Answer }) => (
  <div className="stack">
    {text === '' ? null : <pre>{text}</pre>}
    {tools.map((tool, index) => (
      <pre key={index}>
        {tool.name}({tool.arguments})
      </pre>
    ))}
    {error === null ? null : <ErrorNote error={error} />}
    <p className="small muted">
      {state === 'running' ? 'Answering' : state === 'done' ? 'Done' : 'Stopped'} after {milliseconds(tookMs)}
      {firstMs === null ? '' : `, first token after ${milliseconds(firstMs)}`}
      {state === 'running' || traceId === null ? null : (
        <>
          {' · '}
          <Link to="/requests" search={{ trace_id: traceId }}>
            show record
          </Link>
        </>
      )}
    </p>
  </div>
);

/** One call whose answer is shown as it arrives, and a function that stops it. */
export function useAnswer(): {
  answer: Answer | null;
  run: (path: string, body: object, headers?: Readonly<Record<string, string>>) => void;
  stop: () => void;
} {
  const [answer, setAnswer] = useState<Answer | null>(null);
  const stopping = useRef<AbortController | null>(null);
  return {
    answer,
    run(path, body, headers = {}) {
      stopping.current?.abort();
      stopping.current = new AbortController();
      setAnswer({ text: '', tools: [], traceId: null, state: 'running', error: null, tookMs: 0, firstMs: null });
      void streamAnswer({ path, body, headers }, stopping.current.signal, setAnswer);
    },
    stop: () => stopping.current?.abort(),
  };
}

type ToolDelta = { index?: number; function?: { name?: string; arguments?: string } };

/** Sends a call with `stream: true` and shows the text of its answer as it arrives, for chats and completions. */
export async function streamAnswer(
  { path, body, headers }: { path: string; body: object; headers: Readonly<Record<string, string>> },
  signal: AbortSignal,
  show: (answer: Answer) => void,
): Promise<void> {
  const startMs = performance.now();
  let text = '';
  let firstMs: number | null = null;
  let traceId: string | null = null;
  const tools: ToolCall[] = [];
  const shown = (state: Answer['state'], error: unknown = null): void =>
    show({ text, tools: [...tools], traceId, state, error, tookMs: performance.now() - startMs, firstMs });
  try {
    const response = await send(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify({ ...body, stream: true }),
      signal,
    });
    traceId = response.headers.get('x-gateway-trace-id');
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value = '' } = (await reader?.read()) ?? { done: true, value: '' };
      const lines = (rest + value).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (!line.startsWith('data: {')) continue;
        const part = JSON.parse(line.slice(6)) as {
          choices?: { text?: string; delta?: { content?: string | null; tool_calls?: ToolDelta[] } }[];
          error?: { message: string };
        };
        if (part.error !== undefined) return shown('failed', new Error(part.error.message));
        const piece = part.choices?.[0]?.delta?.content ?? part.choices?.[0]?.text ?? '';
        const called = part.choices?.[0]?.delta?.tool_calls ?? [];
        if (piece !== '' || called.length > 0) firstMs ??= performance.now() - startMs;
        text += piece;
        for (const { index = 0, function: { name = '', arguments: more = '' } = {} } of called) {
          const before = tools[index] ?? { name: '', arguments: '' };
          tools[index] = { name: before.name + name, arguments: before.arguments + more };
        }
      }
      if (done) return shown('done');
      shown('running');
    }
  } catch (error) {
    shown('failed', signal.aborted ? null : error);
  }
}
