import { z } from 'zod';
import { anyObject, text } from './scalars.ts';

// Stored configs (CONF-4). What is inside `config` is judged by libs/contracts/config.ts, for
// configs of calls and stored ones alike.

/** The object itself, or its JSON text. */
const document = () => z.union([anyObject(), z.string().min(1).max(65_536)]);

/** Members of the body of POST /configs. */
export const configFields = { name: text({ min: 1, max: 200 }), config: document() };

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
