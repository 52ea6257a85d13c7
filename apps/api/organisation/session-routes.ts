import type { Request } from 'express';
import type { Kysely } from 'kysely';
import { EndSessionQuery, SessionEnded, SessionObject } from '#libs/contracts/people/sessions.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Caller } from '#libs/http/caller.ts';
import { getContext } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { version } from '#libs/kernel/version.ts';
import { describeCaller } from '#libs/people/describe-caller.ts';
import { beginSession, endSessions } from '#libs/people/sessions.ts';
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

const refusals: ReadonlySet<string> = new Set(['unauthenticated', 'forbidden']);
const startedAt = new Date(performance.timeOrigin).toISOString();

/**
 * Shows the party that a request acts as, for any key, and sets the cookie by which a browser stays signed in. These
 * routes need no scope, so they authenticate themselves. Errors: unauthenticated; invalid_request for a token that is
 * too long for a cookie.
 */
export function sessionRoutes(deps: SessionDeps): Route[] {
  const { db, authenticate, browserSessions, resources } = deps;
  const identify = async (request: Request): Promise<Caller> => {
    const caller = await authenticate(request);
    getContext(request).caller = caller;
    return caller;
  };
  const signIn = async (request: Request): Promise<Caller> => {
    try {
      return await identify(request);
    } catch (error) {
      if (error instanceof GatewayError && refusals.has(error.kind)) deps.onRefusedSignIn(request, error);
      throw error;
    }
  };
  /**
   * Ends the session of the request, or all sessions of its user or key. A cookie that no longer works has no session
   * to end.
   */
  const end = async (request: Request, isEverywhere: boolean): Promise<number> => {
    try {
      const caller = await identify(request);
      const id = browserSessions.sessionOf(request);
      if (id === null && !isEverywhere) return 0;
      const metadata = toEventMetadata(request);
      return await endSessions(resources, { caller, metadata, id: isEverywhere ? null : id });
    } catch (error) {
      if (error instanceof GatewayError && error.kind === 'unauthenticated') return 0;
      throw error;
    }
  };
  const common = { path: '/v1/session', tag: 'Sessions', scope: 'public' } as const;
  return [
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
        const caller = await identify(request);
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
      summary: 'End the session of this browser, or all sessions of its user or key',
      description:
        'Deletes the cookie; copies of it stop working within a second. The key itself stays valid. With ' +
        '`everywhere=true`, all sessions of the same user or key end.',
      responses: { 200: { description: 'The cookie is deleted and no longer works.', schema: SessionEnded } },
      ...withInput({ query: EndSessionQuery }, async ({ query }, request, response) => {
        const ended = await end(request, query.everywhere === 'true');
        browserSessions.end(response);
        response.json({ object: 'session.deleted', deleted: true, ended });
      }),
    },
  ];
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
