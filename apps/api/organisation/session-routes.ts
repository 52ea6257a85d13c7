import type { Request } from 'express';
import type { Kysely } from 'kysely';
import { EndSessionQuery, OwnSessionList, SessionEnded, SessionObject } from '#libs/contracts/people/sessions.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Caller } from '#libs/http/caller.ts';
import { getContext } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { version } from '#libs/kernel/version.ts';
import { describeCaller } from '#libs/people/describe-caller.ts';
import { beginSession, endSessions, listOwnSessions } from '#libs/people/sessions.ts';
import type { BrowserSessions } from './browser-sessions.ts';

export type SessionDeps = {
  db: Kysely<Database>;
  /** Throws unauthenticated. Also accepts the cookie of a session. */
  authenticate: (request: Request) => Caller | Promise<Caller>;
  browserSessions: BrowserSessions;
  /** The store in which sessions are recorded. */
  resources: Parameters<typeof beginSession>[0];
  /** Records a refused sign-in. */
  onRefusedSignIn: (request: Request, error: GatewayError) => void;
};

type SessionEnd = { ended: number; isOwn: boolean };

const refusals: ReadonlySet<string> = new Set(['unauthenticated', 'forbidden']);
const startedAt = new Date(performance.timeOrigin).toISOString();

/**
 * Shows the party that a request acts as, for any key, and sets the cookie by which a browser stays signed in. These
 * routes need no scope, so they authenticate themselves. Errors: unauthenticated; invalid_request for a token that is
 * too long for a cookie.
 */
export function sessionRoutes(deps: SessionDeps): Route[] {
  const { db, browserSessions, resources } = deps;
  const signIn = async (request: Request): Promise<Caller> => {
    try {
      return await identify(deps, request);
    } catch (error) {
      if (error instanceof GatewayError && refusals.has(error.kind)) deps.onRefusedSignIn(request, error);
      throw error;
    }
  };
  /**
   * Ends the session with this ID, all sessions of the user or key of the request, or the session of the request. Without
   * an ID, a cookie that no longer works has no session to end.
   */
  const end = async (request: Request, { everywhere, id: wanted }: EndSessionQuery): Promise<SessionEnd> => {
    try {
      const caller = await identify(deps, request);
      const own = browserSessions.sessionOf(request);
      const isEverywhere = everywhere === 'true';
      const id = wanted ?? own;
      if (id === null && !isEverywhere) return { ended: 0, isOwn: true };
      const metadata = toEventMetadata(request);
      const ended = await endSessions(resources, { caller, metadata, id: isEverywhere ? null : id });
      const isOwn = isEverywhere || id === own;
      if (ended === 0 && !isOwn) throw noSuchSession(id);
      return { ended, isOwn };
    } catch (error) {
      const isSignedOut = error instanceof GatewayError && error.kind === 'unauthenticated' && wanted === undefined;
      if (isSignedOut) return { ended: 0, isOwn: true };
      throw error;
    }
  };
  return [
    ownSessionsRoute(deps),
    {
      ...common,
      method: 'GET',
      operationId: 'retrieveSession',
      summary: 'Show the identity and permissions of the key, token or session of this request',
      description:
        'Works with any key, token or cookie and requires no scope. Returns the workspace, the user or key, the scopes, ' +
        'and the expiry.',
      errors: { invalid_api_key: 'the key does not exist or was revoked' },
      responses: { 200: { description: 'The identity of this request.', schema: SessionObject } },
      handler: async (request, response) => {
        const caller = await identify(deps, request);
        response.json(await describeSession(db, caller, browserSessions.sessionOf(request)));
      },
    },
    {
      ...common,
      method: 'POST',
      operationId: 'createSession',
      summary: 'Start a browser session with the gateway key or token of this request',
      description:
        'The cookie is HttpOnly and SameSite=Strict, contains the encrypted key, and expires with it. With the cookie, ' +
        'requests that change data also need the header `x-sluice-console`. The cookie works for requests made by ' +
        'scripts, not for addresses opened in the browser (`not_a_page`), and not for calls that relay the answer of a ' +
        'provider (`use_a_key`).',
      errors: {
        invalid_api_key: 'the key does not exist or was revoked',
        foreign_page: 'the request came from a page of another origin',
        too_many_sessions: 'the user or key started more than 30 sessions within a minute',
      },
      responses: { 200: { description: 'The identity of the session.', schema: SessionObject } },
      handler: async (request, response) => {
        const caller = await signIn(request);
        let sessionId = '';
        await browserSessions.begin(request, response, caller.expiresAtMs, async (expiresAtMs) => {
          const metadata = toEventMetadata(request);
          const userAgent = request.get('user-agent') ?? null;
          return (sessionId = await beginSession(resources, { caller, metadata, userAgent, expiresAtMs }));
        });
        response.json(await describeSession(db, caller, sessionId));
      },
    },
    {
      ...common,
      method: 'DELETE',
      operationId: 'deleteSession',
      summary: 'End the session of this browser, or other sessions of its user or key',
      description:
        'Deletes the cookie; copies of it stop working within a second. The key itself stays valid. `id` ends another ' +
        'session of the same user or key, and `everywhere=true` ends all of them.',
      errors: { session_not_found: 'the user or key has no active session with this `id`' },
      responses: { 200: { description: 'The cookie is deleted and no longer works.', schema: SessionEnded } },
      ...withInput({ query: EndSessionQuery }, async ({ query }, request, response) => {
        const { ended, isOwn } = await end(request, query);
        if (isOwn) browserSessions.end(response);
        response.json({ object: 'session.deleted', deleted: true, ended });
      }),
    },
  ];
}

const common = { path: '/v1/session', tag: 'Sessions', scope: 'public' } as const;

const ownSessionsRoute = (deps: SessionDeps): Route => ({
  ...common,
  method: 'GET',
  path: `${common.path}/all`,
  operationId: 'listOwnSessions',
  summary: 'List all browser sessions of the user or key of this request',
  description:
    'Works with any key, token or cookie and requires no scope. Lists active sessions of all workspaces, newest first.',
  responses: { 200: { description: 'The sessions.', schema: OwnSessionList } },
  handler: async (request, response) => {
    const caller = await identify(deps, request);
    response.json({ object: 'list', data: await listOwnSessions(deps.resources, caller.principal.id) });
  },
});

async function identify({ authenticate }: SessionDeps, request: Request): Promise<Caller> {
  const caller = await authenticate(request);
  getContext(request).caller = caller;
  return caller;
}

function noSuchSession(id: string | null): GatewayError {
  const message = `Your user or key has no active session '${id ?? ''}'. GET /v1/session/all lists them.`;
  return new GatewayError('not_found', 'session_not_found', message, { param: 'id' });
}

async function describeSession(db: Kysely<Database>, caller: Caller, sessionId: string | null): Promise<SessionObject> {
  const { workspace, name } = await describeCaller(db, caller);
  const { type, id, role, organisationRole } = caller.principal;
  return {
    object: 'session',
    workspace,
    principal: { type, id, name, role, organisation_role: organisationRole ?? null },
    key_id: caller.keyId,
    session_id: sessionId,
    scopes: caller.scopes === 'all' ? null : [...caller.scopes].sort(),
    expires_at: Number.isFinite(caller.expiresAtMs) ? new Date(caller.expiresAtMs).toISOString() : null,
    server: { version, started_at: startedAt },
  };
}
