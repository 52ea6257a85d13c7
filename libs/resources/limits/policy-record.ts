import { sql } from 'kysely';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { CheckContext } from '#libs/resources/define-kind.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';

/** The data that both kinds of policies store. */
export type PolicyData = {
  name: string | null;
  conditions: { key: string; value: string }[];
  group_by: { key: string }[];
};

/**
 * Validates the members that both kinds of policies share, and returns the data to store. Throws not_found for another
 * organisation, and quota_exceeded if the workspace already has the maximum number of policies.
 */
export async function newPolicy(
  noun: string,
  { organisation_id: organisation, ...input }: { organisation_id?: string | undefined } & Record<string, unknown>,
  {
    unit,
    workspaceId,
    row,
    policiesMax = Infinity,
  }: Pick<CheckContext<PolicyData>, 'unit' | 'workspaceId' | 'row' | 'policiesMax'>,
): Promise<Record<string, unknown>> {
  if (organisation !== undefined && organisation !== organisationId) {
    const message = `There is no organisation '${organisation.slice(0, 100)}'. The ID of this organisation is '${organisationId}'.`;
    throw new GatewayError('not_found', 'organisation_not_found', message, { param: 'organisation_id' });
  }
  if (row !== null) return input;
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource
    where kind = ${noun} and workspace_id = ${workspaceId} and deleted_at is null`.execute(unit.tx);
  if ((rows[0]?.count ?? 0) < policiesMax) return { name: null, ...input };
  const message = `This workspace already has ${policiesMax} policies of this kind, the maximum (SLUICE_POLICIES_MAX). Archive one first.`;
  throw new GatewayError('quota_exceeded', 'too_many_policies', message);
}

/** The members that answers about both kinds of policies contain. */
export const policyView = (row: ResourceRow<PolicyData>): object => ({
  name: row.data.name ?? null,
  conditions: row.data.conditions,
  group_by: row.data.group_by,
  status: row.deleted_at ? 'archived' : 'active',
  workspace_id: row.workspace_id,
  organisation_id: organisationId,
});
