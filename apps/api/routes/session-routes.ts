import type { Request } from 'express';
import type { Kysely } from 'kysely';
import { SessionEnded, SessionObject } from '#libs/contracts/sessions.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Caller } from '#libs/http/caller.ts';
import { contextOf } from '#libs/http/request-context.ts';
import type { Route } from '#libs/http/route.ts';
import { version } from '#libs/kernel/version.ts';
import { describeCaller } from '#libs/resources/describe-caller.ts';
import type { BrowserSessions } from '../browser-sessions.ts';

export type SessionDeps = {
  db: Kysely<Database>;
  /** Throws unauthenticated. Also takes a session's cookie. */
  authenticate: (request: Request) => Caller | Promise<Caller>;
  browserSessions: BrowserSessions;
};

const startedAt = new Date(performance.timeOrigin).toISOString();

/**
 * Who a request acts as, for any key, and the cookie by which a browser stays signed in. They need no scope, so they
 * authenticate by themselves. Errors: unauthenticated; invalid_request for a token that is too long for a cookie.
 */
export function sessionRoutes({ db, authenticate, browserSessions }: SessionDeps): Route[] {
  const identify = async (request: Request): Promise<Caller> => {
    const caller = await authenticate(request);
    contextOf(request).caller = caller;
    return caller;
  };
  const describe = async (caller: Caller): Promise<SessionObject> => {
    const { workspace, name } = await describeCaller(db, caller);
    const { type, id, role, organisationRole } = caller.principal;
    return {
      object: 'session',
      workspace,
      principal: { type, id, name, role, organisation_role: organisationRole ?? null },
      key_id: caller.keyId,
      scopes: caller.scopes === 'all' ? null : [...caller.scopes].sort(),
      expires_at: Number.isFinite(caller.expiresAtMs) ? new Date(caller.expiresAtMs).toISOString() : null,
      server: { version, started_at: startedAt },
    };
  };
  const common = { path: '/v1/session', tag: 'Sessions', scope: 'public' } as const;
  return [
    {
      ...common,
      method: 'GET',
      operationId: 'retrieveSession',
      summary: 'Who the key, token or session of this request acts as, and what it may do',
      responses: { 200: { description: 'Who this request acts as.', schema: SessionObject } },
      handler: async (request, response) => {
        response.json(await describe(await identify(request)));
      },
    },
    {
      ...common,
      method: 'POST',
      operationId: 'createSession',
      summary: 'Begin a session of a browser with the gateway key or token of this request: answers with a cookie',
      responses: { 200: { description: 'Who the session acts as.', schema: SessionObject } },
      handler: async (request, response) => {
        const caller = await identify(request);
        const session = await describe(caller);
        browserSessions.begin(request, response, caller.expiresAtMs);
        response.json(session);
      },
    },
    {
      ...common,
      method: 'DELETE',
      operationId: 'deleteSession',
      summary: 'End the session of this browser',
      responses: { 200: { description: 'The cookie is deleted.', schema: SessionEnded } },
      handler: (_request, response) => {
        browserSessions.end(response);
        response.json({ object: 'session.deleted', deleted: true });
      },
    },
  ];
}
