import { addGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AccessSnapshot } from './access-snapshot.ts';

type Source = Pick<AccessSnapshot, 'findGuardrails'>;

/**
 * A plan with the guardrails of the workspace before its own; without any it is the same plan. Throws unavailable when
 * they cannot be read: a call that should be judged is not made unjudged.
 */
export function withWorkspaceGuardrails(snapshot: Source, workspaceId: string, plan: Plan): Plan {
  const live = snapshot.findGuardrails(workspaceId);
  if (live === undefined) return plan;
  if (live !== null) return addGuardrails(plan, live);
  throw new GatewayError(
    'unavailable',
    'guardrails_unreadable',
    'This release cannot read the guardrails of the workspace. Set them again with PUT /v1/admin/guardrails.',
  );
}
