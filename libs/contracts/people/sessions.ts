import { z } from 'zod';

/** The party that a request acts as: `GET /session`, and the answer to `POST /session`. */
export const SessionObject = z.object({
  object: z.literal('session'),
  workspace: z.object({ id: z.string(), name: z.string(), slug: z.string() }),
  principal: z.object({
    type: z.enum(['user', 'service_key', 'organisation_key']),
    id: z.string(),
    name: z.string().nullable().describe('The name of the key, or the name or e-mail address of the user.'),
    role: z.string().nullable().describe('The role of the user in the workspace.'),
    organisation_role: z.string().nullable().describe('The role of the user in the organisation.'),
  }),
  key_id: z.string(),
  session_id: z.string().nullable().describe('The ID of the browser session. Null for a request with a key or token.'),
  scopes: z.array(z.string()).nullable().describe('Null for all scopes.'),
  expires_at: z.string().nullable().describe('When the key or token expires, in ISO 8601. Null if it does not expire.'),
  server: z.object({ version: z.string(), started_at: z.string() }),
});
export type SessionObject = z.output<typeof SessionObject>;

export const EndSessionQuery = z.object({
  id: z
    .string()
    .min(1)
    .max(200)
    .optional()
    .describe(
      'The ID of a session of the same user or key, from `GET /v1/session/all`. Default: the session of this request.',
    ),
  everywhere: z.enum(['true', 'false']).optional().describe('If true, all sessions of the same user or key end.'),
});

export type EndSessionQuery = z.output<typeof EndSessionQuery>;

export const SessionEnded = z.object({
  object: z.literal('session.deleted'),
  deleted: z.literal(true),
  ended: z.int().describe('The number of ended sessions. 0 without a valid cookie.'),
});

/** A browser that has signed in: `GET /sessions`. */
export const BrowserSessionObject = z.object({
  id: z.string(),
  object: z.literal('browser-session'),
  workspace_id: z.string(),
  principal: z.object({ type: z.string(), id: z.string() }).describe('The user or key that is signed in.'),
  key_id: z.string().describe('The key that started the session, or the user of the token.'),
  address: z.string().nullable(),
  user_agent: z.string().nullable().describe('The user agent of the browser.'),
  status: z.enum(['active', 'expired']),
  created_at: z.string(),
  expires_at: z.string(),
});
export type BrowserSessionObject = z.output<typeof BrowserSessionObject>;

/** The signed-in browsers of the caller's user or key: `GET /session/all`. */
export const OwnSessionList = z.object({ object: z.literal('list'), data: z.array(BrowserSessionObject) });
