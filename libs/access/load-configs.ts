import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { joinSecrets } from './config-secrets.ts';
import { planOfStored } from './read-config.ts';
import type { SealedSecret, SecretMembers, Secrets } from './secrets.ts';
import type { LiveGuardrails } from './workspace-guardrails.ts';

type Deps = { db: Kysely<Database>; secrets: Pick<Secrets, 'open'>; logger: Logger };

/** The guardrails of these workspaces, where they have some. */
export async function fetchGuardrails(
  { db, secrets, logger }: Deps,
  ids: readonly string[],
): Promise<LiveGuardrails[]> {
  const rows = await db
    .selectFrom('workspace')
    .leftJoin('secret', (join) =>
      join.onRef('secret.owner_id', '=', 'workspace.id').onRef('secret.workspace_id', '=', 'workspace.id'),
    )
    .select(['workspace.id', 'workspace.id as workspace_id', 'workspace.version', 'workspace.guardrails'])
    .select(['secret.id as secret_id', 'secret.owner_id', 'secret.master_key_id', 'secret.wrapped_key'])
    .select('secret.ciphertext')
    .where('workspace.id', '=', sql<string>`any(${ids}::text[])`)
    .where('workspace.guardrails', 'is not', null)
    .execute();
  return rows.map((row) => {
    const members = openOwned(row, secrets);
    const whole = members && joinSecrets(row.guardrails ?? {}, members);
    const plan = whole && planOfStored(whole);
    if (plan === null) logger.error({ workspace_id: row.id }, 'the guardrails of a workspace cannot be read');
    return { id: row.id, version: row.version, guardrails: plan && plan.leaves[0] };
  });
}

type OwnedColumns = Nullable<Omit<SealedSecret, 'id' | 'workspace_id'>> & {
  workspace_id: string;
  secret_id: string | null;
};
type Nullable<Type> = { [Name in keyof Type]: Type[Name] | null };

/** No members when there is no row; null when it does not open. */
function openOwned(row: OwnedColumns, secrets: Pick<Secrets, 'open'>): SecretMembers | null {
  const { secret_id: id, workspace_id, owner_id, master_key_id, wrapped_key, ciphertext } = row;
  if (id === null || owner_id === null || master_key_id === null || wrapped_key === null || ciphertext === null)
    return {};
  try {
    return secrets.open({ id, workspace_id, owner_id, master_key_id, wrapped_key, ciphertext });
  } catch {
    // What cannot be read is told where it is used.
    return null;
  }
}
