import { z } from 'zod';
import { guardrailLimits } from './guardrails.ts';
import { anyObject } from './scalars.ts';

const list = () => z.array(anyObject()).max(guardrailLimits.guardrailsMax);

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
