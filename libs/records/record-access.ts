import type { Request } from 'express';
import { rebind } from '#libs/database/workspace-binding.ts';
import { organisationId } from '#libs/http/caller.ts';
import { actsForOrganisation, refuseForeignOrganisation, requireOrganisation } from '#libs/http/rights.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { chosenWorkspace, workspaceOfRecord } from './choose-workspace.ts';
import type { AnyResource } from './define-resource.ts';
import type { ResourceStore, RouteKit, StoreDeps } from './kit.ts';
import { isOfWorkspace } from './traits/shared.ts';

/** Which records of a kind a request is about, and whether its caller can change them. */
export type RecordAccess = Pick<RouteKit, 'recordOf' | 'requireWrite'> & {
  /** The workspace whose records a request is about; null for the records of the whole organisation. */
  workspaceOf(request: Request, wanted: unknown): Promise<string | null>;
  /** The owner of a record that the request creates: a workspace or the organisation. */
  ownerOfNew(request: Request, body: { workspace_id?: unknown; organisation_id?: unknown }): Promise<string>;
};

export function createRecordAccess(
  kind: AnyResource,
  store: Pick<ResourceStore<Record<string, unknown>>, 'get'>,
  deps: StoreDeps,
): RecordAccess {
  const { shared, slugs, names } = kind;
  const { db } = deps;
  const requireOrganisationKey = (request: Request): void =>
    requireOrganisation(getCaller(request), `do this to ${names.many}`);

  const workspaceOf: RecordAccess['workspaceOf'] = async (request, wanted) => {
    const caller = getCaller(request);
    const isOfAll = !isOfWorkspace(kind) || (shared?.isDefault && wanted === undefined);
    if (isOfAll && actsForOrganisation(caller)) {
      rebind(null);
      return null;
    }
    if (!isOfWorkspace(kind)) return caller.workspaceId;
    const workspaceId = await chosenWorkspace(db, caller, wanted as string | undefined);
    await kind.prepare?.(workspaceId, deps);
    return workspaceId;
  };

  return {
    workspaceOf,
    async recordOf(request, query) {
      refuseForeignOrganisation(query.organisation_id);
      const name = String(request.params[slugs ? 'slug' : 'id']);
      const isOfOne = isOfWorkspace(kind) && shared?.isDefault !== true;
      const place =
        query.workspace_id ?? (isOfOne ? await workspaceOfRecord(db, getCaller(request), kind, name) : undefined);
      return { workspaceId: await workspaceOf(request, place), name };
    },
    async ownerOfNew(request, { workspace_id: wanted, organisation_id: organisation }) {
      if (!isOfWorkspace(kind)) requireOrganisationKey(request);
      const isOfOrganisation =
        organisation !== undefined || (shared?.isDefault === true && actsForOrganisation(getCaller(request)));
      refuseForeignOrganisation(organisation);
      if (shared === undefined || wanted !== undefined || !isOfOrganisation)
        return (await workspaceOf(request, wanted)) ?? organisationId;
      requireOrganisationKey(request);
      rebind(null);
      return organisationId;
    },
    async requireWrite(request, record) {
      if (isOfWorkspace(kind) && shared === undefined) return;
      const { workspace_id: owner } = await store.get(record);
      if (shared !== undefined && owner !== organisationId) return;
      requireOrganisationKey(request);
      if (owner === organisationId) rebind(null);
    },
  };
}
