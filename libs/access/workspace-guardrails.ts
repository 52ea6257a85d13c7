import type { EventMetadata } from '#libs/event-log/event.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { addGuardrails, type AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { announceAccessChange } from './access-change.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { readDocument, storeDocumentSecrets, type DocumentDeps } from './config-document.ts';
import { redactSecrets } from './config-secrets.ts';
import { workspaceModel, type GuardrailDocument } from './workspace-model.ts';

export type WorkspaceGuardrails = {
  /** Without their secrets; empty lists for none. */
  get(workspaceId: string): Promise<GuardrailDocument>;
  /**
   * Replaces the guardrails that every call of the workspace passes, whatever its config; empty lists end them. Every
   * process follows within a second. Throws invalid_request.
   */
  set(workspaceId: string, metadata: EventMetadata, document: GuardrailDocument): Promise<GuardrailDocument>;
};

const none: GuardrailDocument = { input_guardrails: [], output_guardrails: [] };

export function createWorkspaceGuardrails(deps: DocumentDeps): WorkspaceGuardrails {
  const { db, eventLog, secrets, snapshot, checkDestination } = deps;
  return {
    async get(workspaceId) {
      const query = db.selectFrom('workspace').select('guardrails').where('id', '=', workspaceId);
      return redactSecrets((await query.executeTakeFirst())?.guardrails ?? none) as GuardrailDocument;
    },
    async set(workspaceId, metadata, document) {
      // The lists are those of a config, and so are their rules.
      const judged = readDocument(document, 'guardrails', checkDestination);
      const data = await eventLog.transact({ workspaceId, streams: [workspaceId], metadata }, async (unit) => {
        const owner = { workspaceId, ownerId: workspaceId };
        await secrets.removeOwned(unit, owner);
        const open = (await storeDocumentSecrets(secrets, unit, owner, judged)) as GuardrailDocument;
        await unit.append(workspaceModel, workspaceId, [{ type: 'workspace.guardrails_set', data: open }]);
        await announceAccessChange(unit);
        return open;
      });
      await snapshot.catchUp();
      return data;
    },
  };
}

type Source = Pick<AccessSnapshot, 'findGuardrails'>;

/**
 * A plan with the guardrails of the workspace before its own; without any it is the same plan. Throws unavailable when
 * they cannot be read: a call that should be judged is not made unjudged.
 */
export function withWorkspaceGuardrails(snapshot: Source, workspaceId: string, plan: Plan): Plan {
  const live = snapshot.findGuardrails(workspaceId);
  if (live === undefined) return plan;
  if (live.guardrails !== null) return addGuardrails(plan, live.guardrails);
  throw new GatewayError(
    'unavailable',
    'guardrails_unreadable',
    'This release cannot read the guardrails of the workspace. Set them again with PUT /v1/admin/guardrails.',
  );
}

export type LiveGuardrails = {
  /** The workspace's. */
  readonly id: string;
  readonly version: number;
  /** null when this process cannot read them (a newer release stored them, or their secrets do not open). */
  readonly guardrails: AddedGuardrails | null;
};
