import { createDiskBlobFolder } from '#libs/blobs/disk-blob-folder.ts';
import { postBody } from '#libs/calls/upstream/post-body.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createCheckpointPublisher, keepInFolder, type CheckpointTarget } from '#libs/seal/publish-checkpoints.ts';
import { createSealer } from '#libs/seal/seal-log.ts';
import type { Platform } from '#apps/platform/platform.ts';
import type { WorkerConfig } from './config.ts';

/** Composes what seals the event log and publishes its checkpoints. */
export function sealParts(config: WorkerConfig, { db, audit, egress }: Platform, logger: Logger): Part[] {
  const target = createCheckpointTarget(config.SLUICE_AUDIT_PUBLISH, { audit, egress });
  return [
    createSealer({ db, ...audit, publishes: target !== null, logger }),
    ...(target === null ? [] : [createCheckpointPublisher({ db, keys: audit.keys, target, logger })]),
  ];
}

/** The place that `SLUICE_AUDIT_PUBLISH` names; null without one. */
function createCheckpointTarget(
  place: string | undefined,
  { audit, egress }: Pick<Platform, 'audit' | 'egress'>,
): CheckpointTarget | null {
  if (place === undefined) return null;
  if (place.startsWith('file:')) {
    return keepInFolder(createDiskBlobFolder(place.slice('file:'.length)), audit.folder, audit.keys);
  }
  const url = new URL(place);
  return async ({ note }, signal) => {
    const deps = { egress, label: 'The address in SLUICE_AUDIT_PUBLISH', signal, secrets: [] };
    const headers = { 'content-type': 'text/plain; charset=utf-8' };
    const { status } = await postBody(deps, { url, headers, body: note, workspaceId: undefined });
    if (status < 200 || status > 299) throw new Error(`SLUICE_AUDIT_PUBLISH answered with status ${status}`);
  };
}
