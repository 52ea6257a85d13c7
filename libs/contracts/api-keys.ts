import { z } from 'zod';
import { relayAreas } from '#libs/providers/provider.ts';
import { timestamp } from './access-fields.ts';
import { metadata, text } from './scalars.ts';

const scopeAreas = [
  'chat',
  'completions',
  'embeddings',
  'models',
  'batches',
  'files',
  'fine_tuning',
  'virtual_keys',
  'api_keys',
  'configs',
  'logs',
  'audit',
  'workspaces',
  'providers',
  ...relayAreas,
] as const;

type ScopeName = `${(typeof scopeAreas)[number]}.${'read' | 'write'}`;

/** What a key may be allowed to do: `<area>.<read|write>`. Routes declare theirs from the same list. */
export const scopes: readonly ScopeName[] = scopeAreas.flatMap((area) => [`${area}.read`, `${area}.write`] as const);

export const Scope = z.enum(scopes);
export type Scope = ScopeName;

/** Whose key it is: the organisation's, a service's (a program) or a user's of a workspace. */
export const ApiKeyType = z.enum(['organisation-service', 'workspace-service', 'workspace-user']);
export type ApiKeyType = z.output<typeof ApiKeyType>;

/** Members of the body of POST /api-keys. Without `scopes` the key may do everything. */
export const apiKeyFields = {
  name: text({ min: 1, max: 200 }),
  type: ApiKeyType.exclude(['workspace-user']).optional(),
  scopes: z.array(Scope).min(1).max(scopes.length).optional(),
  expires_at: timestamp().nullish(),
  defaults: z
    .strictObject({
      config_id: text({ min: 1, max: 200 }).optional(),
      metadata: metadata().optional(),
      /** false: the key's requests go by `config_id`, and may bring no config and no option of one. */
      allow_config_override: z.boolean().optional(),
    })
    .optional(),
};

/** A key as it is listed: never the key itself. */
export const ApiKeyObject = z.object({
  id: z.string(),
  object: z.literal('api-key'),
  name: z.string(),
  type: ApiKeyType.optional(),
  workspace_id: z.string().optional(),
  scopes: z.array(Scope).nullable(),
  last_four: z.string(),
  status: z.enum(['active', 'revoked', 'expired']),
  defaults: z.object({
    config_id: z.string().nullable(),
    metadata: z.record(z.string(), z.string()).nullable(),
    allow_config_override: z.boolean(),
  }),
  created_at: z.int(),
  expires_at: z.int().nullable(),
});
