import { randomBytes } from 'node:crypto';
import { sql } from 'kysely';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** The lock of a workspace's slugs of one kind: slugs are unique, so the commands that take one run one after the other. */
export const slugLock = (workspaceId: string, kind: string): string => `${kind}_slugs:${workspaceId}`;

/**
 * The wanted slug, or one made of the name, that no active record of these kinds has; the caller holds `slugLock`. `ofAll`: slugs are
 * unique in the whole installation. Throws conflict (`slug_taken`) for a wanted one that is taken.
 */
export async function freeSlug(
  { tx }: Pick<UnitOfWork, 'tx'>,
  place: {
    kinds: readonly string[];
    kind: string;
    one: string;
    workspaceId: string;
    ofAll: boolean;
    reserved?: readonly string[] | undefined;
  },
  wanted: { slug: string | undefined; name: string },
): Promise<string> {
  const { kinds, kind, one, workspaceId, ofAll, reserved = [] } = place;
  const candidates =
    wanted.slug === undefined ? slugCandidates(wanted.name, kind.slice(kind.lastIndexOf('_') + 1)) : [wanted.slug];
  const find = sql<{ slug: string }>`
    select slug from resource where kind = any(${kinds}::text[]) and deleted_at is null and slug = any(${candidates}::text[])
      and (${ofAll} or workspace_id = ${workspaceId})`;
  const { rows } = await (ofAll ? asSystem(() => find.execute(tx)) : find.execute(tx));
  const taken = new Set([...reserved, ...rows.map(({ slug }) => slug)]);
  const free = candidates.find((candidate) => !taken.has(candidate));
  if (free !== undefined) return free;
  throw new GatewayError(
    'conflict',
    'slug_taken',
    `The slug '${candidates[0] ?? ''}' is taken by another ${one}. Choose another slug, or update that one with PUT.`,
    { param: 'slug' },
  );
}

/** Best first; the last is random, so that one of them is free. `fallback` is for a name without letters and digits. */
function slugCandidates(name: string, fallback: string): string[] {
  const base =
    name
      .normalize('NFKD')
      .toLowerCase()
      .replaceAll(/[^a-z0-9_-]+/g, '-')
      .replaceAll(/^-+|-+$/g, '')
      .slice(0, 50) || fallback;
  const numbered = Array.from({ length: 20 }, (_, index) => `${base}-${index + 2}`);
  return [base, ...numbered, `${base}-${randomBytes(4).toString('hex')}`];
}
