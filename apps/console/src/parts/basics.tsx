import { useEffect, useRef, useState, type ReactNode } from 'react';
import { ApiError } from '../api/client.ts';
import { serverUrl } from '../api/server-url.ts';
import { ago, dateTime, timeOfDay } from '../format.ts';

export type Tone = 'good' | 'warn' | 'bad' | 'info' | 'plain';

export const Badge = ({ tone = 'plain', children }: { tone?: Tone; children: ReactNode }) => (
  <span className={`badge ${tone}`}>{children}</span>
);

/** The heading of a page, with its actions. */
export const PageHead = ({ title, text, children }: { title: ReactNode; text?: ReactNode; children?: ReactNode }) => (
  <header className="page-head">
    <div>
      <h1>{title}</h1>
      {text === undefined ? null : <p>{text}</p>}
    </div>
    {children === undefined ? null : <div className="row">{children}</div>}
  </header>
);

export const Card = ({
  title,
  aside,
  flush = false,
  children,
}: {
  title?: string;
  aside?: ReactNode;
  /** Without padding, for tables, which have their own label. */
  flush?: boolean;
  children: ReactNode;
}) => (
  <section className={`card ${flush ? 'flush' : ''}`} aria-label={flush ? undefined : title}>
    {title === undefined ? null : (
      <div className={`row between ${flush ? 'card-head' : ''}`}>
        <h2>{title}</h2>
        {aside}
      </div>
    )}
    {children}
  </section>
);

export const Tile = ({ label, value, note }: { label: string; value: ReactNode; note?: ReactNode }) => (
  <div className="card tile">
    <div className="label">{label}</div>
    <div className="value">{value}</div>
    {note === undefined ? null : <div className="note">{note}</div>}
  </div>
);

/** Shown for an empty list: describes its entries and how to create the first one. */
export const Empty = ({ title, children }: { title: string; children?: ReactNode }) => (
  <div className="empty">
    <strong>{title}</strong>
    {children}
  </div>
);

export const Loading = ({ what = 'Loading' }: { what?: string }) => (
  <div className="empty" role="status">
    {what}…
  </div>
);

const textOfError = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** An error in the API's wording, with the IDs that help to find it in the logs. */
export function ErrorNote({ error, retry }: { error: unknown; retry?: () => void }) {
  const known = error instanceof ApiError ? error : null;
  const needsScope = known?.code === 'missing_scope';
  return (
    <div className="note-box bad" role="alert">
      <strong>{needsScope ? 'Your key does not allow this' : 'The request failed'}</strong>
      <p>{textOfError(error)}</p>
      <div className="row small muted">
        {known?.code ? <span className="mono">{known.code}</span> : null}
        {known?.requestId ? (
          <span>
            request <Id id={known.requestId} />
          </span>
        ) : null}
        {retry === undefined ? null : (
          <button type="button" className="plain" onClick={retry}>
            Try again
          </button>
        )}
      </div>
    </div>
  );
}

/** Shows the state of a query: its error, a loading indicator, or the data. */
export function Shown<Data>({
  query,
  children,
}: {
  query: { data: Data | undefined; error: unknown; failureReason?: unknown; refetch?: () => unknown };
  children: (data: Data) => ReactNode;
}) {
  if (query.data !== undefined) {
    return (
      <>
        {query.error === null ? null : (
          <p className="small outdated" role="status">
            This data may be out of date because it could not be refreshed: {textOfError(query.error)}
          </p>
        )}
        {children(query.data)}
      </>
    );
  }
  if (query.error !== null) return <ErrorNote error={query.error} retry={() => void query.refetch?.()} />;
  // The query is retried automatically, and its users should know why they wait.
  if (query.failureReason != null) return <Loading what={`${textOfError(query.failureReason)} Retrying…`} />;
  return <Loading />;
}

export function CopyButton({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = (): void => {
    void copyText(text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), 1_500);
    });
  };
  return (
    <button type="button" className="plain small" onClick={copy} aria-label={`${label}: ${text.slice(0, 60)}`}>
      {isDone ? 'Copied' : label}
    </button>
  );
}

/** The clipboard API requires https or localhost; the old way still works elsewhere. */
async function copyText(text: string): Promise<void> {
  if (navigator.clipboard !== undefined) return await navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

export const shortId = (id: string): string => (id.length > 22 ? `${id.slice(0, 12)}…${id.slice(-6)}` : id);

/** An ID that is shown shortened and copied in full. */
export const Id = ({ id }: { id: string }) => (
  <span className="nowrap">
    <code title={id}>{shortId(id)}</code>
    <CopyButton text={id} />
  </span>
);

/** How long ago something happened; shows the exact time on hover. Updates automatically. */
export function Ago({ at }: { at: number | string | Date }) {
  const [, count] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => count((value) => value + 1), 10_000);
    return () => clearInterval(timer);
  }, []);
  return (
    <time dateTime={new Date(at).toISOString()} title={dateTime(at)} className="nowrap">
      {ago(at)}
    </time>
  );
}

/** The time of day, with the date unless it is today: for logs, where many entries are from the same minute. */
export const At = ({ at }: { at: number | string | Date }) => (
  <time dateTime={new Date(at).toISOString()} title={`${dateTime(at)}, ${ago(at)}`} className="nowrap">
    {timeOfDay(at)}
  </time>
);

export const Facts = ({ rows }: { rows: readonly (readonly [string, ReactNode])[] }) => (
  <dl className="facts">
    {rows.map(([name, value]) => (
      <FactRow key={name} name={name} value={value} />
    ))}
  </dl>
);
const FactRow = ({ name, value }: { name: string; value: ReactNode }) => (
  <>
    <dt>{name}</dt>
    <dd>{value ?? '–'}</dd>
  </>
);

/** JSON that can be read and copied. A text is shown unchanged. */
export function Code({ value, label }: { value: unknown; label: string }) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2);
  return (
    <div className="code-box" role="region" aria-label={label} tabIndex={0}>
      <div className="row between">
        <span className="small muted">{label}</span>
        <CopyButton text={text} />
      </div>
      <pre>{text}</pre>
    </div>
  );
}

/** A native dialog of the browser: it holds the focus, and Escape closes it. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (dialog.current?.open === false) dialog.current.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-label={title}>
      <div className="stack">
        <div className="row between">
          <h2>{title}</h2>
          <button type="button" className="plain" onClick={onClose} aria-label="Close">
            ✕
          </button>
        </div>
        {children}
      </div>
    </dialog>
  );
}

/** A bar of two parts, such as completed and failed lines. */
export function Progress({
  done,
  failed,
  total,
  label,
}: {
  done: number;
  failed: number;
  total: number;
  label: string;
}) {
  const bar = useRef<HTMLDivElement>(null);
  const share = (part: number): string => `${total === 0 ? 0 : (part / total) * 100}%`;
  return (
    <div
      className="progress"
      ref={bar}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={done + failed}
    >
      <span style={{ width: share(done) }} />
      <span className="failed" style={{ width: share(failed) }} />
    </div>
  );
}

/** The request that a program would send for this page, for people who want to automate it. */
export const AsCurl = ({ path, method = 'GET', body }: { path: string; method?: string; body?: unknown }) => {
  const data = body === undefined ? '' : ` \\\n  -H 'content-type: application/json' -d '${JSON.stringify(body)}'`;
  const verb = method === 'GET' ? '' : ` -X ${method}`;
  const text = `curl${verb} '${serverUrl()}${path}' -H "authorization: Bearer $SLUICE_API_KEY"${data}`;
  return (
    <details className="small">
      <summary>As curl</summary>
      <Code value={text} label="Command" />
    </details>
  );
};
