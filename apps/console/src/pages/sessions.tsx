import { useQuery } from '@tanstack/react-query';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { Answer } from '../api/types.ts';
import { dateTime } from '../format.ts';
import { Ago, Card, Shown } from '../parts/basics.tsx';
import { Confirmed, useChange } from '../parts/changes.tsx';
import { RecordTable } from '../parts/table.tsx';
import { useSession } from '../session.tsx';

type BrowserSession = Answer<'/v1/session/all'>['data'][number];
type Sessions = { sessions: readonly BrowserSession[]; total: number };
/** Ends a session; null: the caller cannot. */
type End = ((id: string) => Promise<unknown>) | null;

/** The browsers that are signed in with the user or key of this session. Does not require a scope. */
export function OwnSessions() {
  const sessions = useQuery({
    queryKey: ['session', 'own'],
    queryFn: () => answerOf(api.GET('/v1/session/all')),
  });
  return (
    <>
      <h1>Your sessions</h1>
      <Card title="Browsers that are signed in with your user or key" flush>
        <Shown query={sessions}>
          {({ data }) => (
            <SessionTable
              sessions={data}
              total={data.length}
              end={(id) => answerOf(api.DELETE('/v1/session', { params: { query: { id } } }))}
            />
          )}
        </Shown>
      </Card>
    </>
  );
}

/** The browsers that are signed in to this workspace. */
export function WorkspaceSessions({ mayWrite }: { mayWrite: boolean }) {
  const sessions = useQuery({
    queryKey: ['session', 'browsers'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/sessions', { params: { query } }))),
  });
  const end: End = (id) => answerOf(api.DELETE('/v1/sessions/{id}', { params: { path: { id } } }));
  return (
    <Card title="Browser sessions" flush>
      <Shown query={sessions}>
        {({ data, total }) => <SessionTable sessions={data} total={total} end={mayWrite ? end : null} />}
      </Shown>
    </Card>
  );
}

function SessionTable({ sessions, total, end }: Sessions & { end: End }) {
  const { session_id: ownId } = useSession();
  return (
    <RecordTable
      label="Browser sessions"
      total={total}
      textOf={({ id, principal, address }) => `${id} ${principal.id} ${address ?? ''}`}
      rows={sessions}
      keyOf={({ id }) => id}
      columns={[
        { head: 'User or key', isLong: true, cell: ({ principal }) => <code>{principal.id}</code> },
        { head: 'Address', cell: ({ address }) => address ?? '' },
        { head: 'Browser', isLong: true, cell: ({ user_agent: agent }) => agent ?? '' },
        { head: 'Signed in', cell: ({ created_at: at }) => <Ago at={at} /> },
        { head: 'Expires', cell: ({ expires_at: at }) => dateTime(at) },
        {
          head: 'Actions',
          cell: (session) => {
            if (session.id === ownId) return 'this browser';
            return end === null ? null : <EndSession session={session} end={end} />;
          },
        },
      ]}
    />
  );
}

function EndSession({ session: { id, principal }, end }: { session: BrowserSession; end: NonNullable<End> }) {
  const ending = useChange<void, unknown>(['session'], () => end(id));
  return (
    <Confirmed text="Revoke" question={`Revoke the session of ${principal.id}?`} act={ending}>
      The browser is signed out within a second. The key itself stays valid.
    </Confirmed>
  );
}
