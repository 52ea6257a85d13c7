import { randomBytes } from 'node:crypto';
import { announceAccessChange } from '#libs/access/access-change.ts';
import { apiKeyModel } from '#libs/resources/api-keys.ts';
import { createGatewayKey, digestOf } from '#libs/access/gateway-key.ts';
import { workspaceModel } from '#libs/access/workspace-model.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { TestPlatform } from '#test/platform.ts';

/** Another workspace with a key that may do everything in it; returns the key. */
export async function createWorkspace({ api }: TestPlatform): Promise<string> {
  const { eventLog, access } = api.platform;
  const key = await insertWorkspace(eventLog);
  await access.snapshot.refresh();
  return key;
}

/** The same in a database whose processes run elsewhere; they know the key in a moment. No route makes workspaces yet. */
export async function insertWorkspace(eventLog: EventLog): Promise<string> {
  const workspaceId = newId('ws_');
  const keyId = newId('key_');
  const key = createGatewayKey();
  const metadata = { actor: { type: 'system' as const, id: 'test' } };
  await eventLog.transact({ workspaceId, streams: [workspaceId, keyId], metadata }, async (unit) => {
    const name = `test-${randomBytes(4).toString('hex')}`;
    await unit.append(workspaceModel, workspaceId, [{ type: 'workspace.created', data: { name } }]);
    await unit.append(apiKeyModel, keyId, [
      {
        type: 'api_key.created',
        data: {
          name: 'admin',
          digest: digestOf(key.reveal()),
          last_four: key.lastFour(),
          scopes: null,
          defaults: {},
          expires_at: null,
        },
      },
    ]);
    await announceAccessChange(unit);
  });
  return key.reveal();
}
