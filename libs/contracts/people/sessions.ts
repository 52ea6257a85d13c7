import { z } from 'zod';

/** Who a request acts as: `GET /session`, and the answer to `POST /session`. */
export const SessionObject = z.object({
  object: z.literal('session'),
  workspace: z.object({ id: z.string(), name: z.string(), slug: z.string() }),
  principal: z.object({
    type: z.enum(['user', 'service_key', 'organisation_key']),
    id: z.string(),
    name: z.string().nullable().describe('of the key; of a user the name or e-mail address'),
    role: z.string().nullable().describe('of a user in the workspace'),
    organisation_role: z.string().nullable().describe('of a user in the organisation'),
  }),
  key_id: z.string(),
  session_id: z.string().nullable().describe('of the browser session; null for a request with a key or token'),
  scopes: z.array(z.string()).nullable().describe('null for all of them'),
  expires_at: z.string().nullable().describe('of the key or token, ISO 8601; null for never'),
  server: z.object({ version: z.string(), started_at: z.string() }),
});
export type SessionObject = z.output<typeof SessionObject>;

export const EndSessionQuery = z.object({
  everywhere: z.enum(['true', 'false']).optional().describe('true: end all sessions of the same user or key'),
});

export const SessionEnded = z.object({
  object: z.literal('session.deleted'),
  deleted: z.literal(true),
  ended: z.int().describe('sessions that were ended; 0 without a valid cookie'),
});

/** A browser that has signed in: `GET /sessions`. */
export const BrowserSessionObject = z.object({
  id: z.string(),
  object: z.literal('browser-session'),
  workspace_id: z.string(),
  principal: z.object({ type: z.string(), id: z.string() }).describe('the user or key that is signed in'),
  key_id: z.string().describe('the key with which it began; of a token, its user'),
  address: z.string().nullable(),
  user_agent: z.string().nullable().describe('as the browser calls itself'),
  status: z.enum(['active', 'expired']),
  created_at: z.string(),
  expires_at: z.string(),
});
