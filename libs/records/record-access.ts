import type { Request } from 'express';
import { rebind } from '#libs/database/workspace-binding.ts';
import { organisationId } from '#libs/http/caller.ts';
import { actsForOrganisation, refuseForeignOrganisation, requireOrganisation } from '#libs/http/rights.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { chosenWorkspace, workspaceOfRecord } from './choose-workspace.ts';
import type { AnyResource } from './define-resource.ts';
import type { ResourceStore, RouteKit, StoreDeps } from './kit.ts';
import { isOfWorkspace } from './traits/shared.ts';

/** Decides which records of a kind a request is about, and whether its caller can change them. */
export function createRecordAccess(
  kind: AnyResource,
  store: Pick<ResourceStore<Record<string, unknown>>, 'get'>,
  deps: StoreDeps,
) {
  const { shared, slugs, names } = kind;
  const { db } = deps;
  const requireOrganisationKey = (request: Request): void =>
    requireOrganisation(getCaller(request), `do this to ${names.many}`);

  /** The workspace whose records a request is about; null for the records of the whole organisation. */
  const workspaceOf = async (request: Request, wanted: unknown): Promise<string | null> => {
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

  const recordOf: RouteKit['recordOf'] = async (request, query) => {
    refuseForeignOrganisation(query.organisation_id);
    const name = String(request.params[slugs ? 'slug' : 'id']);
    const isOfOne = isOfWorkspace(kind) && shared?.isDefault !== true;
    const place =
      query.workspace_id ?? (isOfOne ? await workspaceOfRecord(db, getCaller(request), kind, name) : undefined);
    return { workspaceId: await workspaceOf(request, place), name };
  };

  const requireWrite: RouteKit['requireWrite'] = async (request, record) => {
    if (isOfWorkspace(kind) && shared === undefined) return;
    const { workspace_id: owner } = await store.get(record);
    if (shared !== undefined && owner !== organisationId) return;
    requireOrganisationKey(request);
    if (owner === organisationId) rebind(null);
  };

  /** The owner of a record that the request creates: a workspace or the organisation. */
  const ownerOfNew = async (request: Request, body: Record<string, unknown>): Promise<string> => {
    const { workspace_id: wanted, organisation_id: organisation } = body;
    if (!isOfWorkspace(kind)) requireOrganisationKey(request);
    const isOfOrganisation =
      organisation !== undefined || (shared?.isDefault === true && actsForOrganisation(getCaller(request)));
    refuseForeignOrganisation(organisation);
    if (shared === undefined || wanted !== undefined || !isOfOrganisation)
      return (await workspaceOf(request, wanted)) ?? organisationId;
    requireOrganisationKey(request);
    rebind(null);
    return organisationId;
  };

  return { workspaceOf, recordOf, requireWrite, ownerOfNew };
}
