import { useMutation, useQueryClient, type UseMutationResult } from '@tanstack/react-query';
import { useState, type FormEvent, type ReactNode } from 'react';
import { Code, Dialog, ErrorNote } from './basics.tsx';

/**
 * A change of records. Afterwards, all data about records with these nouns is read again: events report the same change a
 * moment later, but not to a key that cannot read them.
 */
export function useChange<Input, Result>(
  nouns: readonly string[],
  change: (input: Input) => Promise<Result>,
): UseMutationResult<Result, Error, Input> {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: change,
    onSuccess: async () => {
      await queries.invalidateQueries({ predicate: ({ queryKey: [noun] }) => nouns.includes(String(noun)) });
    },
  });
}

/** A button that asks for confirmation before an action that cannot be undone. */
export function Confirmed({
  text,
  question,
  children,
  act,
}: {
  text: string;
  question: string;
  children: ReactNode;
  act: UseMutationResult<unknown, Error, void>;
}) {
  const [asks, setAsks] = useState(false);
  return (
    <>
      <button type="button" className="plain danger" onClick={() => setAsks(true)} aria-label={`${text}: ${question}`}>
        {text}
      </button>
      {asks ? (
        <Dialog title={question} onClose={() => setAsks(false)}>
          <p>{children}</p>
          {act.error === null ? null : <ErrorNote error={act.error} />}
          <div className="row">
            <button type="button" onClick={() => setAsks(false)}>
              Go back
            </button>
            <button
              type="button"
              className="danger"
              disabled={act.isPending}
              onClick={() => act.mutate(undefined, { onSuccess: () => setAsks(false) })}
            >
              {text}
            </button>
          </div>
        </Dialog>
      ) : null}
    </>
  );
}

/**
 * A button that opens a form. `shown` is the part of the answer that is never shown again; the form then stays open and
 * shows it.
 */
export function FormDialog<Result>({
  text,
  title,
  submit,
  act,
  shown,
  primary = false,
  quiet = false,
  children,
}: {
  text: string;
  title: string;
  /** The text of the form's button. */
  submit: string;
  act: UseMutationResult<Result, Error, void>;
  shown?: (result: Result) => { label: string; text: string; note: string } | null;
  primary?: boolean;
  /** Without a border, for use with other buttons in a table row. */
  quiet?: boolean;
  children: ReactNode;
}) {
  const [isOpen, setOpen] = useState(false);
  const result = act.data === undefined ? null : (shown?.(act.data) ?? null);
  const close = (): void => {
    setOpen(false);
    act.reset();
  };
  const send = (event: FormEvent): void => {
    event.preventDefault();
    act.mutate(undefined, shown === undefined ? { onSuccess: close } : {});
  };
  return (
    <>
      <button type="button" className={primary ? 'primary' : quiet ? 'plain' : undefined} onClick={() => setOpen(true)}>
        {text}
      </button>
      {isOpen ? (
        <Dialog title={title} onClose={close}>
          {result === null ? (
            <form className="stack" onSubmit={send}>
              {children}
              {act.error === null ? null : <ErrorNote error={act.error} />}
              <div className="row">
                <button type="submit" className="primary" disabled={act.isPending}>
                  {submit}
                </button>
              </div>
            </form>
          ) : (
            <div className="stack">
              <div className="note-box warn">{result.note}</div>
              <Code value={result.text} label={result.label} />
              <div className="row">
                <button type="button" className="primary" onClick={close}>
                  Done
                </button>
              </div>
            </div>
          )}
        </Dialog>
      ) : null}
    </>
  );
}
