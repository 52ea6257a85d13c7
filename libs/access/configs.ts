import { randomBytes } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { sql, type Kysely } from 'kysely';
import type {
  ConfigObject,
  ConfigVersionObject,
  CreateConfigRequest,
  UpdateConfigRequest,
} from '#libs/contracts/configs.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { toUnixSeconds } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import { announceAccessChange } from './access-change.ts';
import { createChangeLiving } from './change-living.ts';
import {
  configModel,
  configVersionId,
  type ConfigEvent,
  type ConfigRow,
  type ConfigVersionRow,
} from './config-model.ts';
import { readDocument, storeDocumentSecrets, type Document, type DocumentDeps } from './config-document.ts';
import { joinSecrets, redactSecrets } from './config-secrets.ts';
import { listPage, type PageRequest } from './list-page.ts';
import { SecretUnreadableError, type SecretOwner } from './secrets.ts';
import { slugCandidates } from './virtual-key-input.ts';

export type Configs = {
  /** Throws invalid_request (the config, a credential in it) and conflict (`slug_taken`). A repeat gets the first answer. */
  create(
    call: CallIdentity,
    metadata: EventMetadata,
    request: CreateConfigRequest,
  ): Promise<{ record: ConfigObject; replayed: boolean }>;
  /** What the request leaves out stays; another config is a new version, the same one is none. Throws not_found. */
  update(workspaceId: string, name: string, metadata: EventMetadata, request: UpdateConfigRequest): Promise<ConfigRow>;
  /** Frees the slug. Its versions stay, for the batches that were created with them. Throws not_found. */
  remove(workspaceId: string, name: string, metadata: EventMetadata): Promise<ConfigRow>;
  /** By slug or id. Throws not_found, also for another workspace's. */
  get(workspaceId: string, name: string): Promise<ConfigRow>;
  /** Up to `limit + 1`, newest first. Throws invalid_request for a cursor that is none. */
  list(page: PageRequest): Promise<ConfigRow[]>;
  /** Up to `limit + 1` versions of a config, newest first. Throws not_found, and invalid_request for a wrong cursor. */
  listVersions(page: PageRequest, config: ConfigRow): Promise<ConfigVersionRow[]>;
  /** Throws not_found. */
  getVersion(config: ConfigRow, version: number): Promise<ConfigVersionRow>;
};

/** What the column holds. */
const versionMax = 2 ** 31 - 1;

export function createConfigs(deps: DocumentDeps): Configs {
  const { db, eventLog, secrets, snapshot } = deps;

  const get = async (workspaceId: string, name: string): Promise<ConfigRow> => {
    const row = await findConfig(db, workspaceId, name);
    if (!row) throw noSuchConfig(name);
    return row;
  };

  /** null when its secrets cannot be read: then it is never the one that is stored again. */
  const wholeOf = async (unit: UnitOfWork, row: ConfigRow): Promise<Document | null> => {
    try {
      return joinSecrets(row.config, (await secrets.readOwned(unit.tx, ownerOf(row))) ?? {});
    } catch (error) {
      if (error instanceof SecretUnreadableError) return null;
      throw error;
    }
  };

  const change = createChangeLiving({ eventLog, snapshot, model: configModel, get, missing: noSuchConfig });

  return {
    get,
    list: (page) => listPage<ConfigRow>(db, 'config', page),

    async create(call, metadata, request) {
      const { workspaceId } = call;
      const document = readDocument(request.config, 'config', deps.checkDestination);
      const id = newId('config_');
      const random = randomBytes(4).toString('hex');
      const command = { workspaceId, streams: [slugLock(workspaceId), id], metadata };
      const result = await transactOnce<ConfigObject>(eventLog, call, command, async (unit) => {
        const slug = await freeSlug(unit, workspaceId, request, random);
        const open = await storeDocumentSecrets(
          secrets,
          unit,
          { workspaceId, ownerId: configVersionId(id, 1) },
          document,
        );
        const data = { slug, name: request.name, config: open, config_version: 1 };
        const row = await appendVersion(unit, id, { type: 'config.created', data });
        await announceAccessChange(unit);
        return { status: 200, body: toConfigObject(row) };
      });
      await snapshot.catchUp();
      return { record: result.body, replayed: result.replayed };
    },

    update(workspaceId, name, metadata, request) {
      const document =
        request.config === undefined ? null : readDocument(request.config, 'config', deps.checkDestination);
      return change(workspaceId, name, metadata, async (unit, row) => {
        const renamed = request.name !== undefined && request.name !== row.name ? { name: request.name } : {};
        if (document !== null && !isDeepStrictEqual(document, await wholeOf(unit, row))) {
          await secrets.removeOwned(unit, ownerOf(row));
          const config_version = row.config_version + 1;
          const open = await storeDocumentSecrets(secrets, unit, ownerOf({ ...row, config_version }), document);
          const data = { ...renamed, config: open, config_version };
          return await appendVersion(unit, row.id, { type: 'config.updated', data });
        }
        const events: ConfigEvent[] = 'name' in renamed ? [{ type: 'config.updated', data: renamed }] : [];
        return await unit.append(configModel, row.id, events);
      });
    },

    remove: (workspaceId, name, metadata) =>
      change(workspaceId, name, metadata, async (unit, row) => {
        await secrets.removeOwned(unit, ownerOf(row));
        return await unit.append(configModel, row.id, [{ type: 'config.deleted', data: {} }]);
      }),

    async listVersions({ workspaceId, after, limit }, config) {
      let query = db
        .selectFrom('config_version')
        .selectAll()
        .where('workspace_id', '=', workspaceId)
        .where('config_id', '=', config.id)
        .orderBy('config_version', 'desc')
        .limit(limit + 1);
      if (after !== null) {
        const version = after.startsWith(`${config.id}@`) ? Number(after.slice(config.id.length + 1)) : Number.NaN;
        if (!Number.isInteger(version) || version > versionMax) {
          const message = "Invalid 'after': it is the id of no item of this list.";
          throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
        }
        query = query.where('config_version', '<', version);
      }
      return await query.execute();
    },

    async getVersion(config, version) {
      const row = await db
        .selectFrom('config_version')
        .selectAll()
        .where('id', '=', configVersionId(config.id, version))
        .where('workspace_id', '=', config.workspace_id)
        .executeTakeFirst();
      if (row) return row;
      const message = `The config '${config.slug}' has no version ${version}; its last one is ${config.config_version}.`;
      throw new GatewayError('not_found', 'config_version_not_found', message, { param: 'version' });
    },
  };
}

/** A living config by slug or id. */
export async function findConfig(
  db: Kysely<Database>,
  workspaceId: string,
  name: string,
): Promise<ConfigRow | undefined> {
  return await db
    .selectFrom('config')
    .selectAll()
    .where('workspace_id', '=', workspaceId)
    .where((where) => where.or([where('slug', '=', name), where('id', '=', name)]))
    .where('deleted_at', 'is', null)
    .executeTakeFirst();
}

/** The event, the head and the version's own row, which is what a rebuild would make of that event. */
async function appendVersion(unit: UnitOfWork, id: string, event: ConfigEvent): Promise<ConfigRow> {
  const row = await unit.append(configModel, id, [event]);
  await unit.tx
    .insertInto('config_version')
    .values({
      id: configVersionId(id, row.config_version),
      workspace_id: row.workspace_id,
      version: row.version,
      updated_at: row.updated_at,
      config_id: id,
      config_version: row.config_version,
      config: JSON.stringify(row.config),
      created_at: row.updated_at,
    })
    .execute();
  return row;
}

const ownerOf = (row: Pick<ConfigRow, 'id' | 'workspace_id' | 'config_version'>): SecretOwner => ({
  workspaceId: row.workspace_id,
  ownerId: configVersionId(row.id, row.config_version),
});

/** Slugs are unique in a workspace, so those who take one go one after the other. */
const slugLock = (workspaceId: string): string => `config_slugs:${workspaceId}`;

async function freeSlug(
  { tx }: UnitOfWork,
  workspaceId: string,
  { slug, name }: CreateConfigRequest,
  random: string,
): Promise<string> {
  const candidates = slug === undefined ? slugCandidates(name, random) : [slug];
  const rows = await tx
    .selectFrom('config')
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
    `A config '${candidates[0] ?? ''}' already exists. Choose another slug, or update that one with PUT.`,
    { param: 'slug' },
  );
}

const noSuchConfig = (name: string): GatewayError =>
  new GatewayError('not_found', 'config_not_found', `There is no config '${name.slice(0, 100)}'.`, { param: 'slug' });

export function toConfigObject(row: ConfigRow): ConfigObject {
  return {
    id: row.id,
    object: 'config',
    slug: row.slug,
    name: row.name,
    version: row.config_version,
    status: row.deleted_at ? 'deleted' : 'active',
    config: redactSecrets(row.config),
    created_at: toUnixSeconds(row.created_at),
    updated_at: toUnixSeconds(row.updated_at),
  };
}

export function toConfigVersionObject({ slug }: Pick<ConfigRow, 'slug'>, row: ConfigVersionRow): ConfigVersionObject {
  return {
    id: row.id,
    object: 'config.version',
    config_id: row.config_id,
    slug,
    version: row.config_version,
    config: redactSecrets(row.config),
    created_at: toUnixSeconds(row.created_at),
  };
}
