import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { looksLikeId } from '#libs/kernel/ids.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { AnyResource } from './define-resource.ts';
import { resourceModel } from './resource-model.ts';
import { freeSlug, slugPlace } from './resource-slug.ts';

const metadata: EventMetadata = { actor: { type: 'system', id: 'slugs' } };

/**
 * Gives each active record whose slug looks like an ID another slug: earlier releases allowed such slugs. Logs the old and
 * the new one, because requests and configs that use the old slug have to change. Several processes may run it at once.
 */
export async function renameSlugsLikeIds(
  { db, eventLog, logger }: { db: Kysely<Database>; eventLog: EventLog; logger: Logger },
  kinds: readonly AnyResource[],
): Promise<void> {
  for (const kind of kinds.filter(({ slug }) => slug)) {
    const { rows } = await sql<{ id: string; workspaceId: string }>`
      select id, workspace_id as "workspaceId" from resource
      where kind = ${kind.noun} and deleted_at is null and slug ~ '^[a-z]+_[0-9a-f]{32}$'`.execute(db);
    for (const { id, workspaceId } of rows) await rename(kind, id, workspaceId);
  }

  async function rename(kind: AnyResource, id: string, workspaceId: string): Promise<void> {
    const model = resourceModel([kind]);
    const { place, lock } = slugPlace(kind, workspaceId);
    await eventLog.transact({ workspaceId, streams: [lock, id], metadata }, async (unit) => {
      const row = await unit.load(model, id);
      if (!row || row.deleted_at || row.slug === null || !looksLikeId(row.slug)) return;
      const slug = await freeSlug(unit, place, { slug: undefined, name: `renamed-${row.slug}` });
      await unit.append(model, id, [{ type: `${kind.noun}.updated`, data: { slug } }]);
      await announceAccessChange(unit);
      logger.warn(
        { kind: kind.noun, id, workspace_id: workspaceId, old_slug: row.slug, slug },
        'a slug that looked like an ID was renamed: change the requests and configs that use the old one',
      );
    });
  }
}
