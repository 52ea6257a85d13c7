import type { Guardrail } from '#libs/contracts/guardrails.ts';
import { addGuardrails, resolveGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findLive } from '#libs/records/find-by-name.ts';
import type { LiveGuardrail } from '#libs/resources/guardrails.ts';
import type { LiveKind } from '#libs/records/live/live-resources.ts';
import { noSuchGuardrail, unreadableGuardrail } from '#libs/credentials/no-such-guardrail.ts';
import type { AccessSnapshot } from './access-snapshot.ts';

type Source = Pick<AccessSnapshot, 'findGuardrails' | 'storedGuardrails'>;

/**
 * Returns a plan with the guardrails of the workspace before its own, and with each reference replaced by the stored
 * guardrail. Without guardrails it is the same plan. Throws unavailable when they cannot be read, and
 * `guardrail_not_found`, so that no call is made without the checks that it should have.
 */
export function guardedPlan(snapshot: Source, workspaceId: string, plan: Plan): Plan {
  const ofWorkspace = snapshot.findGuardrails(workspaceId);
  if (ofWorkspace === null) throw unreadable();
  const guarded = ofWorkspace === undefined ? plan : addGuardrails(plan, ofWorkspace);
  return guarded.namesGuardrails ? withStored(snapshot.storedGuardrails(), workspaceId, guarded) : guarded;
}

// Every change of a guardrail creates a new object for the kind, and the plans that were made with the old one are
// freed with it.
const made = new WeakMap<object, Map<string, WeakMap<Plan, Plan>>>();

function withStored(kind: LiveKind<LiveGuardrail>, workspaceId: string, plan: Plan): Plan {
  let ofKind = made.get(kind);
  if (ofKind === undefined) made.set(kind, (ofKind = new Map()));
  let plans = ofKind.get(workspaceId);
  if (plans === undefined) ofKind.set(workspaceId, (plans = new WeakMap()));
  let resolved = plans.get(plan);
  if (resolved === undefined) {
    resolved = resolveGuardrails(plan, (name) => findGuardrail(kind, workspaceId, name));
    plans.set(plan, resolved);
  }
  return resolved;
}

function findGuardrail(kind: LiveKind<LiveGuardrail>, workspaceId: string, name: string): Guardrail {
  const live = findLive(kind, [workspaceId, organisationId], name);
  if (live === undefined) throw noSuchGuardrail(name, null);
  if (live.guardrail === null) throw unreadableGuardrail(live.slug);
  return live.guardrail;
}

const unreadable = (): GatewayError =>
  new GatewayError(
    'unavailable',
    'guardrails_unreadable',
    'This release cannot read the guardrails of the workspace. Set them again with PUT /v1/admin/guardrails.',
  );
