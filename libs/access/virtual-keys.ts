import { randomBytes } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import type {
  CreateVirtualKeyRequest,
  UpdateVirtualKeyRequest,
  VirtualKeyObject,
} from '#libs/contracts/virtual-keys.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { toUnixSeconds } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { announceAccessChange } from './access-change.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { createChangeLiving } from './change-living.ts';
import { unknownProvider } from './unknown-provider.ts';
import { listPage, type PageRequest } from './list-page.ts';
import { refusePastExpiry } from './refuse-past-expiry.ts';
import type { Secrets } from './secrets.ts';
import { changeVirtualKey } from './change-virtual-key.ts';
import { checkHost, lastFourOf, slugCandidates, splitSettings } from './virtual-key-input.ts';
import { virtualKeyModel, type VirtualKeyRow } from './virtual-key-model.ts';

export type VirtualKeyDeps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  secrets: Secrets;
  snapshot: Pick<AccessSnapshot, 'catchUp'>;
  /** Throws for a URL that could never be called (libs/calls/upstream/egress.ts `check`). */
  checkDestination: (url: URL) => void;
};

export type VirtualKeys = {
  /** Throws invalid_request (provider, custom host) and conflict (`slug_taken`). A repeat gets the first answer. */
  create(
    call: CallIdentity,
    metadata: EventMetadata,
    request: CreateVirtualKeyRequest,
  ): Promise<{ record: VirtualKeyObject; replayed: boolean }>;
  /** What the request leaves out stays. A new custom host asks for the credential again. Throws not_found. */
  update(
    workspaceId: string,
    slug: string,
    metadata: EventMetadata,
    request: UpdateVirtualKeyRequest,
  ): Promise<VirtualKeyRow>;
  /** Wipes the credential and frees the slug. Throws not_found. */
  remove(workspaceId: string, slug: string, metadata: EventMetadata): Promise<VirtualKeyRow>;
  /** Throws not_found, also for another workspace's. */
  get(workspaceId: string, slug: string): Promise<VirtualKeyRow>;
  /** Up to `limit + 1`, newest first. Throws invalid_request for a cursor that is none. */
  list(page: PageRequest): Promise<VirtualKeyRow[]>;
};

export function createVirtualKeys(deps: VirtualKeyDeps): VirtualKeys {
  const { db, eventLog, secrets, snapshot } = deps;

  const get = async (workspaceId: string, slug: string): Promise<VirtualKeyRow> => {
    const row = await db
      .selectFrom('virtual_key')
      .selectAll()
      .where('workspace_id', '=', workspaceId)
      .where('slug', '=', slug)
      .where('deleted_at', 'is', null)
      .executeTakeFirst();
    if (!row) throw noSuchKey(slug);
    return row;
  };

  const change = createChangeLiving({ eventLog, snapshot, model: virtualKeyModel, get, missing: noSuchKey });

  return {
    get,
    list: (page) => listPage(db, page),

    async create(call, metadata, request) {
      const { workspaceId } = call;
      const provider = findProvider(request.provider)?.id;
      if (provider === undefined) throw unknownProvider(request.provider, 'provider');
      const { settings, secrets: members } = splitSettings(provider, request);
      const wanted = { provider, settings, customHost: request.custom_host ?? null };
      const customHost = checkHost(deps.checkDestination, wanted);
      const id = newId('vk_');
      const random = randomBytes(4).toString('hex');
      const command = { workspaceId, streams: [slugLock(workspaceId), id], metadata };
      const result = await transactOnce<VirtualKeyObject>(eventLog, call, command, async (unit) => {
        refusePastExpiry(request.expires_at, unit.now);
        const slug = await freeSlug(unit, workspaceId, request, random);
        const hasSecret = Object.keys(members).length > 0;
        const secretId = hasSecret ? await secrets.store(unit, { workspaceId, ownerId: id }, members) : null;
        const row = await unit.append(virtualKeyModel, id, [
          {
            type: 'virtual_key.created',
            data: {
              slug,
              provider,
              name: request.name,
              custom_host: customHost,
              note: request.note ?? null,
              settings,
              secret_id: secretId,
              secret_last_four: lastFourOf(members),
              expires_at: request.expires_at?.toISOString() ?? null,
            },
          },
        ]);
        await announceAccessChange(unit);
        return { status: 200, body: toVirtualKeyObject(row, unit.now.getTime()) };
      });
      await snapshot.catchUp();
      return { record: result.body, replayed: result.replayed };
    },

    update: (workspaceId, slug, metadata, request) =>
      change(workspaceId, slug, metadata, (unit, row) => changeVirtualKey(deps, unit, row, request)),

    remove: (workspaceId, slug, metadata) =>
      change(workspaceId, slug, metadata, async (unit, row) => {
        if (row.secret_id !== null) await secrets.remove(unit, row.secret_id);
        return unit.append(virtualKeyModel, row.id, [{ type: 'virtual_key.deleted', data: {} }]);
      }),
  };
}

/** Slugs are unique in a workspace, so those who take one go one after the other. */
const slugLock = (workspaceId: string): string => `virtual_key_slugs:${workspaceId}`;

async function freeSlug(
  { tx }: UnitOfWork,
  workspaceId: string,
  { slug, name }: CreateVirtualKeyRequest,
  random: string,
): Promise<string> {
  const candidates = slug === undefined ? slugCandidates(name, random) : [slug];
  const rows = await tx
    .selectFrom('virtual_key')
    .select('slug')
    .where('workspace_id', '=', workspaceId)
    .where('slug', '=', sql<string>`any(${candidates}::text[])`)
    .where('deleted_at', 'is', null)
    .execute();
  const taken = new Set(rows.map((row) => row.slug));
  const free = candidates.find((candidate) => !taken.has(candidate));
  if (free !== undefined) return free;
  throw new GatewayError(
    'conflict',
    'slug_taken',
    `A virtual key '${candidates[0] ?? ''}' already exists. Choose another slug, or update that one with PUT.`,
    { param: 'slug' },
  );
}

const noSuchKey = (slug: string): GatewayError =>
  new GatewayError('not_found', 'virtual_key_not_found', `There is no virtual key '${slug.slice(0, 100)}'.`, {
    param: 'slug',
  });

/** The public form of a virtual key: never a secret. */
export function toVirtualKeyObject(row: VirtualKeyRow, nowMs: number): VirtualKeyObject {
  const isExpired = row.expires_at !== null && row.expires_at.getTime() <= nowMs;
  return {
    id: row.id,
    object: 'virtual-key',
    slug: row.slug,
    name: row.name,
    provider: row.provider,
    last_four: row.secret_last_four,
    custom_host: row.custom_host,
    note: row.note,
    status: row.deleted_at ? 'deleted' : isExpired ? 'expired' : 'active',
    settings: row.settings,
    created_at: toUnixSeconds(row.created_at),
    updated_at: toUnixSeconds(row.updated_at),
    expires_at: toUnixSeconds(row.expires_at),
  };
}
