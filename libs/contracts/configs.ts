import { z } from 'zod';
import { slug } from './access-fields.ts';
import { cursor, listOf, queryInteger } from './lists.ts';
import { anyObject, integer, text } from './scalars.ts';

// Stored configs (CONF-4). What is inside `config` is judged by libs/contracts/config.ts, for
// configs of calls and stored ones alike.

/** The object itself, or its JSON text. */
const document = () => z.union([anyObject(), z.string().min(1).max(65_536)]);

/** Body of POST /configs. */
export const CreateConfigRequest = z.strictObject({
  name: text({ min: 1, max: 200 }),
  slug: slug().optional(),
  config: document(),
});
export type CreateConfigRequest = z.output<typeof CreateConfigRequest>;

/** Body of PUT /configs/{slug}: what is absent stays. The slug is for the life of the config. */
export const UpdateConfigRequest = z.strictObject({
  name: text({ min: 1, max: 200 }).optional(),
  config: document().optional(),
});
export type UpdateConfigRequest = z.output<typeof UpdateConfigRequest>;

/** A config as it is answered; `version` counts its versions from 1. */
export const ConfigObject = z.object({
  id: z.string(),
  object: z.literal('config'),
  slug: z.string(),
  name: z.string(),
  version: z.int(),
  status: z.enum(['active', 'deleted']),
  config: anyObject(),
  created_at: z.int(),
  updated_at: z.int(),
});
export type ConfigObject = z.output<typeof ConfigObject>;

export const ConfigList = listOf(ConfigObject);

export const ConfigVersionObject = z.object({
  id: z.string(),
  object: z.literal('config.version'),
  config_id: z.string(),
  slug: z.string(),
  version: z.int(),
  config: anyObject(),
  created_at: z.int(),
});
export type ConfigVersionObject = z.output<typeof ConfigVersionObject>;

export const ConfigVersionList = listOf(ConfigVersionObject);

export const ConfigVersionListQuery = z.object({
  after: cursor(),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
});

export const ConfigVersionParams = z.object({
  slug: z.string(),
  version: z.preprocess(
    // However large: there is none, which is another answer than that it is no number.
    (value) => (typeof value === 'string' && /^\d+$/.test(value) ? Math.min(Number(value), 2 ** 53 - 1) : value),
    integer({ min: 1 }),
  ),
});
