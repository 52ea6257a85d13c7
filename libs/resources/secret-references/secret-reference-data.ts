import { sql, type RawBuilder } from 'kysely';
import type { ManagerType } from '#libs/contracts/secret-references.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Authors } from '#libs/records/resource-row.ts';

export type SecretReferenceData = Authors & {
  name: string;
  description: string | null;
  manager_type: ManagerType;
  /** Without its secrets, which are encrypted. */
  auth_config: Record<string, string>;
  secret_path: string;
  secret_key: string | null;
  /** Further members of the secret that workspaces may take from a reference of the organisation. Absent for none. */
  allowed_secret_keys?: string[];
  allow_all_workspaces: boolean;
  /** Their ids. */
  allowed_workspaces: string[];
  /** Origins that the credentials of workspaces may send it to. Absent for none. */
  allowed_hosts?: string[];
  tags: Record<string, unknown> | null;
  secret_id: string | null;
};

/**
 * Whether a credential of `mapperId` can take the member `secretKey` of a secret (null: the whole secret). The organisation
 * decides which members of its secrets workspaces can use. The owner of a reference can use all members.
 */
export function mayTakeMember(
  { ownerId, key, allowedKeys }: { ownerId: string; key: string | null; allowedKeys: readonly string[] },
  mapperId: string,
  secretKey: string | null,
): boolean {
  if (ownerId === mapperId) return true;
  // Without secret_key the whole secret is shared, unless single members are.
  const isShared = secretKey === key && (key !== null || allowedKeys.length === 0);
  return isShared || (secretKey !== null && allowedKeys.includes(secretKey));
}

/** Says what a mapping can name instead of a member that the workspace may not take. */
export function memberNotAllowed(
  { slug, key, allowedKeys }: { slug: string; key: string | null; allowedKeys: readonly string[] },
  secretKey: string | null,
  param: string | null,
): GatewayError {
  const names = [...new Set([...(key === null ? [] : [key]), ...allowedKeys])];
  const allowed =
    names.length === 0 ? 'Leave secret_key out' : `Allowed: ${names.map((name) => `'${name}'`).join(', ')}`;
  const wanted = secretKey === null ? 'The whole secret' : `The member '${secretKey.slice(0, 100)}'`;
  const message =
    `${wanted} of the secret reference '${slug}' is not shared with this workspace. ${allowed}, or ask for ` +
    'allowed_secret_keys of the reference to be changed with a key of the organisation.';
  return new GatewayError('forbidden', 'secret_key_not_allowed', message, { param });
}

/** Whether a workspace may map a reference of the organisation, as a condition on rows of `resource`. */
export const isReferenceFor = (workspaceId: string): RawBuilder<unknown> => sql`(
  (data ->> 'allow_all_workspaces')::boolean
  or data -> 'allowed_workspaces' @> ${JSON.stringify([workspaceId])}::jsonb)`;
