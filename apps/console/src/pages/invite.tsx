import { useMutation } from '@tanstack/react-query';
import { useEffect, useState, type FormEvent } from 'react';
import { answerOf, api } from '../api/client.ts';
import type { AcceptedInvite } from '../api/types.ts';
import { serverPath } from '../api/server-url.ts';
import icon from '../icon.svg';
import { CopyButton, ErrorNote } from '../parts/basics.tsx';

/**
 * The page of an invite's link, which does not require a session. Only submitting the form accepts the invite, because mail
 * programs open links too.
 */
export function Invite() {
  // The token is in the fragment, so that no server logs it.
  const [values, setValues] = useState(() => ({ token: tokenIn(location.hash), first_name: '', last_name: '' }));
  const [isInLink] = useState(values.token !== '');
  useEffect(() => history.replaceState(null, '', location.pathname), []);
  const accept = useMutation({
    mutationFn: () => answerOf(api.POST('/v1/admin/users/invites/accept', { body: values })),
  });
  const set = (change: Partial<typeof values>): void => setValues({ ...values, ...change });
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    accept.mutate();
  };
  if (accept.data !== undefined) return <Welcome user={accept.data} />;
  return (
    <main className="sign-in">
      <form className="card" onSubmit={submit}>
        <div className="row">
          <img src={icon} alt="" width={28} height={28} />
          <h1>You are invited</h1>
        </div>
        <p>
          Accept the invite to use the language models of your organisation. If you do not want to, close this page.
        </p>
        {isInLink ? null : (
          <label>
            Token, from the end of the link
            <input value={values.token} onChange={(event) => set({ token: event.target.value.trim() })} required />
          </label>
        )}
        <label>
          First name
          <input
            value={values.first_name}
            onChange={(event) => set({ first_name: event.target.value })}
            maxLength={100}
            autoComplete="given-name"
          />
        </label>
        <label>
          Last name
          <input
            value={values.last_name}
            onChange={(event) => set({ last_name: event.target.value })}
            maxLength={100}
            autoComplete="family-name"
          />
        </label>
        {accept.error === null ? null : <ErrorNote error={accept.error} />}
        <button type="submit" className="primary" disabled={accept.isPending}>
          Accept
        </button>
      </form>
    </main>
  );
}

const tokenIn = (fragment: string): string => new URLSearchParams(fragment.slice(1)).get('token') ?? '';

const Welcome = ({ user }: { user: AcceptedInvite }) => (
  <main className="sign-in">
    <div className="card stack">
      <h1>Welcome</h1>
      <p>You are now a user: {user.email}.</p>
      {user.workspace_api_keys.length === 0 ? null : (
        <>
          <p>These are your API keys. Copy them now: they are not shown again.</p>
          <ul className="plain-list">
            {user.workspace_api_keys.map(({ id, key, workspace_id: workspace }) => (
              <li key={id}>
                Workspace {workspace}: <code>{key}</code> <CopyButton text={key} label="Copy key" />
              </li>
            ))}
          </ul>
        </>
      )}
      <a href={`${serverPath}/console`}>Open the console</a>
    </div>
  </main>
);
