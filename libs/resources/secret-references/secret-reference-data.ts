import { sql, type RawBuilder } from 'kysely';
import type { ManagerType } from '#libs/contracts/secret-references.ts';
import type { Authors } from '#libs/records/resource-row.ts';

export type SecretReferenceData = Authors & {
  name: string;
  description: string | null;
  manager_type: ManagerType;
  /** Without its secrets, which are stored encrypted. */
  auth_config: Record<string, string>;
  secret_path: string;
  secret_key: string | null;
  /**
   * Further members of the secret that workspaces can use from a reference of the organisation. Absent if there are none.
   */
  allowed_secret_keys?: string[];
  allow_all_workspaces: boolean;
  /** The IDs of the workspaces. */
  allowed_workspaces: string[];
  /** The origins that the credentials of workspaces can send it to. Absent if there are none. */
  allowed_hosts?: string[];
  tags: Record<string, unknown> | null;
  secret_id: string | null;
};

/** Whether a workspace can map a reference of the organisation, as a condition on rows of `resource`. */
export const isReferenceFor = (workspaceId: string): RawBuilder<unknown> => sql`(
  (data ->> 'allow_all_workspaces')::boolean
  or data -> 'allowed_workspaces' @> ${JSON.stringify([workspaceId])}::jsonb)`;
