import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { newId } from '#libs/kernel/ids.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { appendAdminKey } from './create-admin-key.ts';
import { createGatewayKey, hashKey } from '#libs/identity/gateway-key.ts';
import { organisationId } from '#libs/http/caller.ts';
import { peopleLock, userCreated, userModel } from './users/users.ts';
import { firstWorkspaceSlug, workspaceModel, type WorkspaceData } from './workspaces.ts';

type Deps = { db: Kysely<Database>; eventLog: EventLog };

export type Bootstrapped = {
  workspaceId: string;
  /** Whether this call created the workspace. */
  created: boolean;
  /** The first admin key, if this call generated it. This is the only time that it can be shown. */
  key: Secret | null;
};

const bootstrapKeyLengthMin = 16;
const lock = 'bootstrap';
const firstWorkspace: WorkspaceData & { slug: string } = { slug: firstWorkspaceSlug, name: firstWorkspaceSlug };
const metadata: EventMetadata = { actor: { type: 'system', id: 'bootstrap' } };

/**
 * Makes an empty installation usable: creates the workspace "default", the owner of the organisation, and a key with all
 * scopes, which is `bootstrapKey` (SLUICE_BOOTSTRAP_KEY) or a generated one. If a workspace already exists, a new
 * `bootstrapKey` becomes another admin key of the oldest workspace; a revoked one stays revoked. Any number of processes can
 * run this at the same time.
 *
 * Throws ConfigurationError for a bootstrap key of less than 16 characters or with spaces or control characters.
 */
export async function bootstrap(
  deps: Deps,
  bootstrapKey: Secret | null,
  ownerEmail = 'owner@localhost',
): Promise<Bootstrapped> {
  if (bootstrapKey) assertBootstrapKey(bootstrapKey);
  const existing = await oldestWorkspace(deps.db);
  if (existing !== undefined) return { workspaceId: existing, created: false, key: await addKey(existing) };
  const workspaceId = newId('ws_');
  const keyId = newId('key_');
  const firstKey = bootstrapKey ?? createGatewayKey();
  const ownerId = newId('user_');
  const command = { workspaceId, streams: [lock, peopleLock, workspaceId, keyId, ownerId], metadata };
  const created = await deps.eventLog.transact(command, async (unit) => {
    if ((await oldestWorkspace(unit.tx)) !== undefined) return false;
    await unit.append(workspaceModel, workspaceId, [{ type: 'workspace.created', data: firstWorkspace }]);
    await appendOwner(unit, ownerId, ownerEmail, workspaceId);
    await appendAdminKey(unit, keyId, 'admin', firstKey);
    await announceAccessChange(unit);
    return true;
  });
  // Another process was faster: a workspace exists now, and the key given here could still be missing.
  return created
    ? { workspaceId, created, key: bootstrapKey ? null : firstKey }
    : bootstrap(deps, bootstrapKey, ownerEmail);

  async function addKey(workspaceId: string): Promise<null> {
    if (!bootstrapKey) return null;
    const digest = hashKey(bootstrapKey.reveal());
    const id = newId('key_');
    await deps.eventLog.transact({ workspaceId, streams: [lock, id], metadata }, async (unit) => {
      // This includes revoked and replaced keys: restarting the process must not make them work again.
      const { rows: known } = await sql`
        select from resource where kind = 'api_key' and (lookup = ${digest} or data ->> 'first_digest' = ${digest})`.execute(
        unit.tx,
      );
      if (known.length > 0) return;
      await appendAdminKey(unit, id, 'admin', bootstrapKey);
      await announceAccessChange(unit);
    });
    return null;
  }
}

/** Creates the owner of the organisation as a member of its first workspace. */
async function appendOwner(unit: UnitOfWork, id: string, email: string, workspaceId: string): Promise<void> {
  const owner = userCreated({ email, first_name: '', last_name: '', role: 'owner' });
  const joined = { type: 'user.workspace_joined', data: { workspace_id: workspaceId, role: 'admin' } };
  await unit.append(userModel, id, [owner, joined], organisationId);
}

function assertBootstrapKey(key: Secret): void {
  if (/^[\x21-\x7e]{16,512}$/.test(key.reveal())) return;
  throw new ConfigurationError(
    `SLUICE_BOOTSTRAP_KEY must have ${bootstrapKeyLengthMin} to 512 printable ASCII characters without spaces, because it is sent in a header. Generate one with: openssl rand -hex 24`,
  );
}

async function oldestWorkspace(db: Kysely<Database>): Promise<string | undefined> {
  const query = db.selectFrom('resource').select('id').where('kind', '=', 'workspace').where('deleted_at', 'is', null);
  return (await query.orderBy('created_at').orderBy('id').limit(1).executeTakeFirst())?.id;
}
