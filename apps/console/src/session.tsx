import { queryOptions, useQuery, useQueryClient, type QueryClient } from '@tanstack/react-query';
import { createContext, useContext, useEffect, useState, type FormEvent, type ReactNode } from 'react';
import { answerOf, api, ApiError, send } from './api/client.ts';
import { followChanges } from './api/live.ts';
import type { Session } from './api/types.ts';
import { serverPath } from './api/server-url.ts';
import icon from './icon.svg';
import { ErrorNote, Loading } from './parts/basics.tsx';

const SessionContext = createContext<Session | null>(null);

/** The session of the signed-in user. Only available inside of `SignedIn`. */
export function useSession(): Session {
  const session = useContext(SessionContext);
  if (session === null) throw new Error('useSession must be used inside SignedIn');
  return session;
}

/** Whether the key of the session has a scope, so that a page can leave out actions that would be refused. */
export function useMay(scope: string): boolean {
  const { scopes } = useSession();
  return scopes === null || scopes.includes(scope);
}

/** Whether the session belongs to an organisation key, or to an owner or admin of the organisation. */
export function useActsForOrganisation(): boolean {
  const { type, organisation_role: role } = useSession().principal;
  return type === 'organisation_key' || role === 'owner' || role === 'admin';
}

const sessionQuery = queryOptions({
  queryKey: ['session'],
  queryFn: () => answerOf(api.GET('/v1/session')),
  retry: (failures, error) => error instanceof ApiError && error.status !== 401 && failures < 20,
  retryDelay: 2_000,
});

/** Shows the pages to signed-in users, and the sign-in form to everyone else. */
export function SignedIn({ children }: { children: ReactNode }) {
  const queries = useQueryClient();
  const { data, error, isPending } = useQuery(sessionQuery);
  const isSignedOut = error instanceof ApiError && error.status === 401;
  const isSignedIn = data !== undefined && !isSignedOut;
  useEffect(() => (isSignedIn ? followChanges(queries) : undefined), [isSignedIn, queries]);
  // `data` stays until the next sign-in, so it shows that there was a session, which has ended.
  if (isSignedOut) return <SignIn hasEnded={data !== undefined} />;
  if (data !== undefined) return <SessionContext value={data}>{children}</SessionContext>;
  if (isPending) return <Loading what="Connecting to Sluice" />;
  return <ErrorNote error={error} />;
}

/** Ends the session in this browser. */
export async function signOut(): Promise<void> {
  await send('/v1/session', { method: 'DELETE' });
  location.assign(`${serverPath}/console`);
}

/** Checks whether the session still exists, after an answer that indicates that it does not. */
export const checkSession = (queries: QueryClient): void =>
  void queries.invalidateQueries({ queryKey: sessionQuery.queryKey });

function SignIn({ hasEnded }: { hasEnded: boolean }) {
  const queries = useQueryClient();
  const [key, setKey] = useState('');
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const headers = { 'x-gateway-api-key': key.trim() };
      await send('/v1/session', { method: 'POST', headers });
      // The new session can have another key, which sees fewer records.
      queries.removeQueries({ predicate: ({ queryKey: [noun] }) => noun !== 'session' });
      await queries.resetQueries({ queryKey: ['session'] });
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="sign-in">
      <form className="card" onSubmit={(event) => void submit(event)}>
        <div className="row">
          <img src={icon} alt="" width={28} height={28} />
          <h1>Sign in to Sluice</h1>
        </div>
        {hasEnded ? (
          <p className="note-box warn" role="status">
            Your session has ended, or its key was revoked. Sign in to continue.
          </p>
        ) : null}
        <label>
          Gateway key or token
          <input
            type="password"
            name="key"
            value={key}
            onChange={(event) => setKey(event.target.value)}
            autoComplete="current-password"
            required
          />
          <span className="hint">
            <code>npm start</code> prints the admin key at its first start and keeps it in <code>.data/admin.key</code>.
            It is stored in a cookie that scripts cannot read.
          </span>
        </label>
        {error === null ? null : <ErrorNote error={error} />}
        <button type="submit" className="primary" disabled={isBusy}>
          {isBusy ? 'Signing in…' : 'Sign in'}
        </button>
      </form>
    </main>
  );
}
