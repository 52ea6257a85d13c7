import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import type { FollowUp, KeptVirtualKey } from '#libs/resources/define-kind.ts';
import { slugLock } from '#libs/records/traits/slugs.ts';
import { canonicalHost, parseCustomHost } from '#libs/credentials/custom-host.ts';
import { virtualKeyModel, type VirtualKeyData } from './virtual-keys.ts';

type Deps = { db: Kysely<Database>; eventLog: EventLog; secrets: Secrets };

const metadata: EventMetadata = { actor: { type: 'system', id: 'bootstrap' } };
const idPrefix = 'vk_';

/**
 * Maintains a virtual key for a server whose address can change: creates it if it does not exist, and updates it if its
 * address differs. A key with that slug for another provider belongs to a user and is not touched. Any number of processes
 * can run this at the same time.
 */
export async function keepVirtualKey(deps: Deps, workspaceId: string, kept: KeptVirtualKey): Promise<void> {
  const { slug, provider } = kept;
  const customHost = hostOf(kept);
  const find = (db: Kysely<Database>) =>
    db
      .selectFrom('resource')
      .select(['id', 'data'])
      .where('kind', '=', 'virtual_key')
      .where('workspace_id', '=', workspaceId)
      .where('slug', '=', slug)
      .where('deleted_at', 'is', null)
      .executeTakeFirst();
  const existing = await find(deps.db);
  const id = existing?.id ?? newId(idPrefix);
  const streams = ['bootstrap', slugLock(workspaceId, 'virtual_key'), id];
  await deps.eventLog.transact({ workspaceId, streams, metadata }, async (unit) => {
    const row = await find(unit.tx);
    const stored = row?.data as VirtualKeyData | undefined;
    if (stored && (row?.id !== id || stored.provider !== provider || stored.custom_host === customHost)) return;
    if (stored === undefined) return await appendNew(unit, deps.secrets, workspaceId, id, kept);
    // A credential that a user stored for the old address must not be sent to the new one.
    await deps.secrets.removeOwned(unit, { workspaceId, ownerId: id });
    const secretId = await deps.secrets.store(unit, { workspaceId, ownerId: id }, { key: kept.key });
    const data = { custom_host: customHost, secret_id: secretId, secret_last_four: '' };
    await unit.append(virtualKeyModel, id, [{ type: 'virtual_key.updated', data }]);
    await announceAccessChange(unit);
  });
}

/** Like `keepVirtualKey`, for the other workspaces: updates the virtual keys that `firstVirtualKey` created for them. */
export async function keepVirtualKeys(deps: Deps, kept: KeptVirtualKey): Promise<void> {
  const { rows } = await sql<{ workspace_id: string }>`
    select workspace_id from resource where kind = 'virtual_key' and deleted_at is null and slug = ${kept.slug}
      and data ->> 'provider' = ${kept.provider} and data ->> 'custom_host' is distinct from ${hostOf(kept)}
      -- Not created by a request.
      and data ->> 'created_by' is null`.execute(deps.db);
  for (const { workspace_id: workspaceId } of rows) await keepVirtualKey(deps, workspaceId, kept);
}

/** Gives a new workspace the virtual key that the installation has for all workspaces, if it has one. */
export const firstVirtualKey: FollowUp<object, unknown> = {
  streams: (_input, { virtualKeyOfAll }) => (virtualKeyOfAll === undefined ? [] : [newId(idPrefix)]),
  async run(unit, _input, { row, locked, secrets, virtualKeyOfAll }) {
    const id = locked.find((stream) => stream.startsWith(idPrefix));
    if (virtualKeyOfAll !== undefined && id !== undefined) {
      await appendNew(unit, secrets, row.id, id, virtualKeyOfAll);
    }
  },
};

const hostOf = ({ customHost }: KeptVirtualKey): string => canonicalHost(parseCustomHost(customHost, 'custom_host'));

async function appendNew(
  unit: UnitOfWork,
  secrets: Secrets,
  workspaceId: string,
  id: string,
  kept: KeptVirtualKey,
): Promise<void> {
  const { slug, provider, name, note, key } = kept;
  const secretId = await secrets.store(unit, { workspaceId, ownerId: id }, { key });
  const own = { custom_host: hostOf(kept), secret_id: secretId, secret_last_four: '' };
  const data = { slug, provider, name, note, settings: {}, expires_at: null, ...own };
  await unit.append(virtualKeyModel, id, [{ type: 'virtual_key.created', data }]);
  await announceAccessChange(unit);
}
