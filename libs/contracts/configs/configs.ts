import { z } from 'zod';
import { anyObject, integer, text } from '../scalars.ts';

// Stored configs (CONF-4). libs/contracts/configs/config.ts checks the content of `config`, for configs of calls and
// stored ones alike.

/** The object itself, or its JSON text. */
const document = () => z.union([anyObject(), z.string().min(1).max(65_536)]);

const flag = () => z.union([z.boolean(), integer({ min: 0, max: 1 })]);

/** Members of the body of POST /configs. */
export const configFields = {
  name: text({ min: 1, max: 200 }),
  config: document(),
  /** Stored and shown for clients of Portkey. A call uses a config only if the call, or the defaults of its key, name one. */
  isDefault: flag().optional(),
  is_default: flag().optional(),
};

/** A config in answers; `version` counts its versions from 1. */
export const ConfigObject = z.object({
  id: z.string(),
  object: z.literal('config'),
  slug: z.string(),
  name: z.string(),
  organisation_id: z.string(),
  workspace_id: z.string(),
  is_default: z.int(),
  version: z.int(),
  version_id: z.string(),
  status: z.enum(['active', 'deleted']),
  config: anyObject(),
  format: z.literal('json'),
  owner_id: z.string().nullable(),
  updated_by: z.string().nullable(),
  created_at: z.iso.datetime(),
  last_updated_at: z.iso.datetime(),
  updated_at: z.iso.datetime(),
});

/** The members of the answer about a version in addition to its number and its document. Versions never change. */
export const configVersionFields = {
  ...ConfigObject.pick({ name: true, organisation_id: true, workspace_id: true, is_default: true, version_id: true })
    .shape,
  status: z.enum(['active', 'archived']).describe('`active` for the version in use.'),
  format: z.literal('json'),
  type: z.literal('config'),
  owner_id: z.string().nullable().describe('The user or key that created the config.'),
  updated_by: z.string().nullable().describe('The user or key that last changed the config.'),
  last_updated_at: z.iso.datetime(),
};
