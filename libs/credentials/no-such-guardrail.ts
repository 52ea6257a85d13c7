import { GatewayError } from '#libs/kernel/errors.ts';

export const unknownGuardrailCode = 'guardrail_not_found';

/**
 * The refusal of a call that names a guardrail which is not there, or of a record that would: what should be judged is not
 * done unjudged. `param` null: the caller did not name it.
 */
export const noSuchGuardrail = (name: string, param: string | null): GatewayError =>
  new GatewayError(
    'invalid_request',
    unknownGuardrailCode,
    `There is no guardrail '${name.slice(0, 100)}' in this workspace. GET /v1/guardrails lists those that you can name.`,
    { param },
  );

/** The refusal of a call that a guardrail would judge which this process cannot read. */
export const unreadableGuardrail = (slug: string): GatewayError =>
  new GatewayError(
    'unavailable',
    'guardrails_unreadable',
    `This release cannot read the guardrail '${slug}'. Store it again with PUT /v1/guardrails/${slug}.`,
  );
