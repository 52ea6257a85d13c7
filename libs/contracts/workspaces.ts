import { z } from 'zod';
import { guardrailLimits } from './guardrails.ts';
import { anyObject, text } from './scalars.ts';

const list = () => z.array(anyObject()).max(guardrailLimits.guardrailsMax);

/** Members of the body of POST /admin/workspaces. */
export const workspaceFields = {
  name: text({ min: 1, max: 200 }),
  description: text({ max: 2_000 }).nullish(),
};

/** A workspace as it is answered; times in ISO 8601. */
export const WorkspaceObject = z.object({
  id: z.string(),
  object: z.literal('workspace'),
  slug: z.string(),
  name: z.string(),
  description: z.string().nullable(),
  status: z.enum(['active', 'archived']),
  created_at: z.string(),
  last_updated_at: z.string(),
});

/** Body of PUT /admin/guardrails; each guardrail as in a config (libs/contracts/guardrails.ts). An absent list is empty. */
export const SetGuardrailsRequest = z.strictObject({
  input_guardrails: list().default([]),
  output_guardrails: list().default([]),
});

export const GuardrailsObject = z.object({
  object: z.literal('workspace.guardrails'),
  input_guardrails: z.array(anyObject()),
  output_guardrails: z.array(anyObject()),
});
