import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { createGatewayKey, hashKey } from '#libs/identity/gateway-key.ts';
import type { ApiKeyData } from '#libs/resources/api-keys/api-key-data.ts';
import { apiKeyModel } from '#libs/resources/api-keys/api-keys.ts';
import { findWorkspace } from '#libs/records/choose-workspace.ts';

/** Appends the creation of an organisation key with all rights. The key itself is not part of any event. */
export async function appendAdminKey(unit: UnitOfWork, id: string, name: string, key: Secret): Promise<void> {
  const fingerprint = { digest: hashKey(key.reveal()), last_four: key.lastFour() };
  const data: ApiKeyData = {
    name,
    ...fingerprint,
    scopes: null,
    defaults: {},
    expires_at: null,
    type: 'organisation-service',
    creation_mode: 'auto',
  };
  await unit.append(apiKeyModel, id, [{ type: 'api_key.created', data }]);
}

/**
 * Creates an organisation key in a workspace, which is named by its ID, slug or name; null: the only workspace. It is for an
 * operator who has access to the database but no longer has a key; running processes accept the new key within a second.
 * Only this return value contains the key. Throws not_found, and invalid_request if there are several workspaces and the
 * name is missing or ambiguous.
 */
export async function createAdminKey(
  { db, eventLog }: { db: Kysely<Database>; eventLog: EventLog },
  { workspace, name, metadata }: { workspace: string | null; name: string; metadata: EventMetadata },
): Promise<{ id: string; workspaceId: string; key: Secret }> {
  const workspaceId = await chooseWorkspace(db, workspace);
  const id = newId('key_');
  const key = createGatewayKey();
  await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    await appendAdminKey(unit, id, name, key);
    await announceAccessChange(unit);
  });
  return { id, workspaceId, key };
}

async function chooseWorkspace(db: Kysely<Database>, wanted: string | null): Promise<string> {
  const named = wanted === null ? null : await findWorkspace(db, wanted);
  if (named !== null) return named;
  const { rows } = await sql<{ id: string; name: string }>`
    select id, data ->> 'name' as name from resource where kind = 'workspace' and deleted_at is null
      and (${wanted}::text is null or ${wanted} = data ->> 'name')
    order by created_at limit 20`.execute(db);
  const [first, ...others] = rows;
  if (first === undefined) {
    const message =
      wanted === null
        ? 'There is no workspace yet. The first start creates a workspace and its key.'
        : `There is no workspace '${wanted}'.`;
    throw new GatewayError('not_found', 'workspace_not_found', message);
  }
  if (others.length === 0) return first.id;
  const list = [first, ...others].map(({ id, name }) => `${id} (${name})`).join(', ');
  throw new GatewayError(
    'invalid_request',
    'ambiguous_workspace',
    `There are several workspaces. Choose one by its ID: ${list}.`,
  );
}
