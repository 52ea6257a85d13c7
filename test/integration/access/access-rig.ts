import { randomBytes } from 'node:crypto';
import type { Kysely } from 'kysely';
import type { z } from 'zod';
import {
  createAccessSnapshot,
  type AccessSnapshot,
  type AccessSnapshotOptions,
} from '#libs/snapshot/access-snapshot.ts';
import { createAuthenticate } from '#libs/identity/authenticate.ts';
import { createBatchTargets } from '#libs/credentials/batch-targets.ts';
import type { MappedSecrets } from '#libs/credentials/mapped-secrets.ts';
import { bootstrap } from '#libs/people/bootstrap.ts';
import type { KeyRights } from '#libs/http/rights.ts';
import { parseMasterKeys, type MasterKeys } from '#libs/secrets/master-key.ts';
import { createRouting } from '#libs/credentials/routing.ts';
import { createSecrets } from '#libs/secrets/secrets.ts';
import { workspaceModel } from '#libs/people/workspaces.ts';
import { createPlanCache } from '#libs/credentials/configs/plan-cache.ts';
import { readVersion } from '#libs/records/traits/versions.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import type { CallIdentity } from '#libs/event-log/idempotency.ts';
import { scopes, type ApiKeyObject } from '#libs/contracts/people/api-keys.ts';
import { parseWith } from '#libs/contracts/parse.ts';
import type { VirtualKeyObject } from '#libs/contracts/virtual-keys.ts';
import type { ApiKeyData } from '#libs/resources/api-keys/api-key-data.ts';
import { apiKeyKind } from '#libs/resources/api-keys/api-keys.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import type { ResourceStore } from '#libs/records/kit.ts';
import { createBodySchema, updateBodySchema } from '#libs/records/resource-routes.ts';
import { createResourceStore } from '#libs/records/resource-store.ts';
import { virtualKeyKind, type VirtualKeyData } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import { newId } from '#libs/kernel/ids.ts';
import { createLogger, type Logger } from '#libs/kernel/logging/logger.ts';
import { testPeople } from '#test/people-options.ts';

export const metadata: EventMetadata = { actor: { type: 'system', id: 'test' } };
/** Of a key that may do everything, for ever. */
export const allRights: KeyRights = {
  principal: { type: 'organisation_key', id: 'key_test', role: null },
  scopes: 'all',
  defaults: { configId: null, allowsConfigOverride: true, metadata: null },
  expiresAtMs: Number.POSITIVE_INFINITY,
};
export const silent: Logger = createLogger({ name: 'test', level: 'silent' });
export const testMasterKeys: MasterKeys = parseMasterKeys(randomBytes(32).toString('hex'));

type Source = { db: Kysely<Database>; connectionString: string };
type Options = Partial<AccessSnapshotOptions> & { checkDestination?: (url: URL) => void };

/** One process's view of the access tables, without a server around it. Its snapshot has to be started. */
export function createProcess({ db, connectionString }: Source, options: Options = {}) {
  const eventLog = createEventLog(db);
  const secrets = createSecrets({ masterKeys: testMasterKeys });
  const { checkDestination = () => {}, ...snapshotOptions } = options;
  const snapshot = createAccessSnapshot({
    db,
    secrets,
    logger: silent,
    listenConnectionString: connectionString,
    ...snapshotOptions,
  });
  const resources = {
    db,
    eventLog,
    secrets,
    snapshot,
    checkDestination,
    people: testPeople,
    clock: systemClock,
    scopes: () => new Set<string>(scopes),
  };
  // Nothing in these tests is mapped to a secret reference.
  const mappedSecrets: MappedSecrets = { complete: async (target) => target };
  const targetDeps = {
    db,
    secrets,
    snapshot,
    clock: systemClock,
    mappedSecrets,
    plans: createPlanCache(),
    checkDestination,
    readVersion: async (version: Parameters<typeof readVersion>[1]) => (await readVersion(db, version))?.data,
  };
  return {
    db,
    eventLog,
    secrets,
    snapshot,
    resources,
    apiKeys: apiKeysOf(createResourceStore<ApiKeyData>(apiKeyKind, resources)),
    virtualKeys: virtualKeysOf(createResourceStore<VirtualKeyData>(virtualKeyKind, resources)),
    authenticate: createAuthenticate({ snapshot, clock: systemClock }),
    routing: createRouting(targetDeps),
    batchTargets: createBatchTargets(targetDeps),
  };
}

/** The store of API keys, as the tests speak to it: with the rights of the key that asks. */
function apiKeysOf(store: ResourceStore<ApiKeyData>) {
  const actorOf = (workspaceId: string, rights: KeyRights, event: EventMetadata) => {
    const caller = { workspaceId, keyId: 'key_test', ...rights };
    return { caller, metadata: event };
  };
  return {
    async create(call: CallIdentity, maker: KeyRights, event: EventMetadata, request: Record<string, unknown>) {
      const { record, shownOnce } = await store.create(
        call,
        call.workspaceId,
        actorOf(call.workspaceId, maker, event),
        request,
      );
      const { key, ...rest } = {
        ...(record as z.output<typeof ApiKeyObject>),
        key: new Secret(shownOnce['key'] ?? ''),
      };
      return { record: rest, key };
    },
    revoke: (workspaceId: string, revoker: KeyRights, id: string, event: EventMetadata) =>
      store.remove({ workspaceId, name: id }, actorOf(workspaceId, revoker, event)),
    get: (workspaceId: string, id: string) => store.get({ workspaceId, name: id }),
    list: async (workspaceId: string) => (await store.list({ workspaceId, after: null, skip: 0, limit: 100 })).rows,
  };
}

/** The store of virtual keys, as the tests speak to it: bodies of requests in, fields of rows out. */
function virtualKeysOf(store: ResourceStore<VirtualKeyData>) {
  const actorOf = (workspaceId: string, event: EventMetadata) => ({
    caller: { workspaceId, keyId: 'key_test', ...allRights },
    metadata: event,
  });
  const flat = ({ data, ...row }: ResourceRow<VirtualKeyData>) => ({ ...row, slug: row.slug ?? '', ...data });
  return {
    async create(call: CallIdentity, event: EventMetadata, body: object) {
      const { workspaceId } = call;
      const input = parseWith(createBodySchema(virtualKeyKind), body);
      const { record, replayed } = await store.create(call, workspaceId, actorOf(workspaceId, event), input);
      return { record: record as z.output<typeof VirtualKeyObject>, replayed };
    },
    async update(workspaceId: string, name: string, event: EventMetadata, body: object) {
      const input = parseWith(updateBodySchema(virtualKeyKind), body);
      return flat(await store.update({ workspaceId, name }, actorOf(workspaceId, event), input));
    },
    remove: (workspaceId: string, name: string, event: EventMetadata) =>
      store.remove({ workspaceId, name }, actorOf(workspaceId, event)),
    get: async (workspaceId: string, name: string) => flat(await store.get({ workspaceId, name })),
    list: async (page: { workspaceId: string; after: string | null; limit: number }) =>
      (await store.list({ ...page, skip: 0 })).rows.map(flat),
  };
}

export type AccessProcess = ReturnType<typeof createProcess>;

/** Starts the snapshots, and stops them at the end of the block. */
export async function started(...processes: { snapshot: AccessSnapshot }[]): Promise<AsyncDisposable> {
  for (const { snapshot } of processes) await snapshot.start?.();
  return {
    async [Symbol.asyncDispose]() {
      for (const { snapshot } of processes) await snapshot.stop?.();
    },
  };
}

/** A workspace beside the default one. */
export async function addWorkspace({ db, eventLog }: AccessProcess): Promise<string> {
  await bootstrap({ db, eventLog }, null);
  const id = newId('ws_');
  await eventLog.transact({ workspaceId: id, streams: [id], metadata }, async (unit) => {
    await unit.append(workspaceModel, id, [{ type: 'workspace.created', data: { name: 'other' } }]);
  });
  return id;
}

/** A call that is no repeat of any other, unless `fields` say so. */
export function callOf(workspaceId: string, fields: Partial<CallIdentity> = {}): CallIdentity {
  const unique = randomBytes(8).toString('hex');
  return {
    workspaceId,
    keyId: 'key_test',
    route: 'POST /test',
    idempotencyKey: null,
    retryCount: 0,
    tryMsMax: 600_000,
    requestId: `req_${unique}`,
    fingerprint: unique,
    ...fields,
  };
}

export const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });
