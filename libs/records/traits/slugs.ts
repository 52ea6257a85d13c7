import { randomBytes } from 'node:crypto';
import { sql } from 'kysely';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { looksLikeId } from '#libs/kernel/ids.ts';

/**
 * A record is addressed by its slug, which is given or derived from `name`, or by its ID. Kinds without slugs have only IDs.
 */
export type Slugs = {
  /** Kinds that share their slugs, including this one; the first one names the lock. Default: only this one. */
  kinds?: readonly string[];
  /** Whether slugs are unique in the whole installation, and not just in one workspace. */
  areGlobal?: boolean;
  /** Slugs that records cannot have, because their paths would conflict with other paths. */
  reserved?: readonly string[];
};

export const slugErrors = { slug_taken: 'another record has this slug' };

/** The lock for a workspace's slugs of one kind. Slugs are unique, so commands that take one run one after the other. */
export const slugLock = (workspaceId: string, kind: string): string => `${kind}_slugs:${workspaceId}`;

type SlugPlace = {
  kinds: readonly string[];
  kind: string;
  one: string;
  workspaceId: string;
  /** Whether slugs are unique in the whole installation. */
  ofAll: boolean;
  reserved?: readonly string[] | undefined;
};

/** Determines among which records the slug of a record of this kind must be unique, and the lock for their slugs. */
export function slugPlace(
  { noun: kind, names, slugs = {} }: { noun: string; names: { one: string }; slugs?: Slugs },
  workspaceId: string,
): { place: SlugPlace; lock: string } {
  const { kinds = [kind], areGlobal: ofAll = false, reserved } = slugs;
  return {
    place: { kinds, kind, one: names.one, workspaceId, ofAll, reserved },
    lock: slugLock(ofAll ? '*' : workspaceId, kinds[0] ?? kind),
  };
}

/**
 * Returns the wanted slug, or one derived from the name, that no active record of these kinds has and that does not look
 * like an ID. The caller must hold `slugLock`. Throws conflict (`slug_taken`) for a wanted slug that is taken, and
 * invalid_request for one that looks like an ID.
 */
export async function freeSlug(
  { tx }: Pick<UnitOfWork, 'tx'>,
  place: SlugPlace,
  wanted: { slug: string | undefined; name: string },
): Promise<string> {
  const { kinds, kind, one, workspaceId, ofAll, reserved = [] } = place;
  if (wanted.slug !== undefined && looksLikeId(wanted.slug)) {
    const message =
      `Invalid 'slug': '${wanted.slug}' looks like the ID of a record (letters, '_' and 32 hexadecimal digits). ` +
      'Choose another slug.';
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'slug' });
  }
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
    `Another ${one} already has the slug '${candidates[0] ?? ''}'. Choose another slug, or update that ${one} with PUT.`,
    { param: 'slug' },
  );
}

/**
 * The candidates, best first. The last one is random, so that one of them is free. `fallback` is used for a name without
 * letters and digits.
 */
function slugCandidates(name: string, fallback: string): string[] {
  const base =
    name
      .normalize('NFKD')
      .toLowerCase()
      .replaceAll(/[^a-z0-9_-]+/g, '-')
      .replaceAll(/^-+|-+$/g, '')
      .slice(0, 50) || fallback;
  const numbered = Array.from({ length: 20 }, (_, index) => `${base}-${index + 2}`);
  return [...(looksLikeId(base) ? [] : [base]), ...numbered, `${base}-${randomBytes(4).toString('hex')}`];
}
