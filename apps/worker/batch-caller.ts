import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { ModelCaller } from '#libs/credentials/configs/public-models.ts';
import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';

/** The key and the user that created a batch, as the caller of its lines. The user has the role of this moment. */
export function batchCaller(
  snapshot: Pick<AccessSnapshot, 'roleOf'>,
  { workspace_id: workspaceId, headers }: Pick<BatchRow, 'workspace_id' | 'headers'>,
): ModelCaller {
  const { api_key_id: keyId = null, user_id: userId } = headers;
  return { workspaceId, keyId, role: userId === undefined ? null : snapshot.roleOf(userId, workspaceId) };
}
