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
  scopes: z.array(z.string()).nullable().describe('null for all of them'),
  expires_at: z.string().nullable().describe('of the key or token, ISO 8601; null for never'),
  server: z.object({ version: z.string(), started_at: z.string() }),
});
export type SessionObject = z.output<typeof SessionObject>;

export const SessionEnded = z.object({ object: z.literal('session.deleted'), deleted: z.literal(true) });
