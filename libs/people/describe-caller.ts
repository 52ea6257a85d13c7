import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { Caller } from '#libs/http/caller.ts';

export type CallerNames = {
  workspace: { id: string; name: string; slug: string };
  /** The name of the key, or the user's e-mail address; null if there is none. */
  name: string | null;
};

/** Returns the human-readable names of the workspace and of the key or user that a request acts with. */
export async function describeCaller(
  db: Kysely<Database>,
  { workspaceId, keyId, principal }: Caller,
): Promise<CallerNames> {
  const who = principal.type === 'user' ? principal.id : keyId;
  const { rows } = await asSystem(() =>
    sql<{ id: string; slug: string | null; name: string | null }>`
      select id, slug, coalesce(data ->> 'email', data ->> 'name') as name from resource
      where id in (${workspaceId}, ${who})`.execute(db),
  );
  const workspace = rows.find(({ id }) => id === workspaceId);
  return {
    workspace: { id: workspaceId, name: workspace?.name ?? workspaceId, slug: workspace?.slug ?? workspaceId },
    name: rows.find(({ id }) => id === who)?.name ?? null,
  };
}
