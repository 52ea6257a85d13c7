import type { StoredBlob } from '#libs/blobs/blob-store.ts';
import type { NewFile } from '#libs/files/files.ts';

/** The member of a batch's metadata that names the replay that it belongs to. */
const replayMember = 'traffic_replay';

/** The files of a replay have recorded requests and answers, so they do not stay forever. */
const filesExpireAfterSeconds = 30 * 86_400;

/** The parameters that all batches of replays have. */
export const batchOfReplay = (replayId: string) => ({
  completionWindow: '24h',
  metadata: { [replayMember]: replayId },
  outputExpiresAfterSeconds: filesExpireAfterSeconds,
});

/** The input file of such a batch. */
export const toInputFile = (name: string, blob: StoredBlob): NewFile => ({
  purpose: 'batch',
  filename: `${name}.jsonl`,
  blob,
  expiresAfterSeconds: filesExpireAfterSeconds,
});

/** Returns the replay that a batch claims to belong to; null: none. Anyone can set the metadata of a batch. */
export function readReplayId({ metadata }: { metadata: Record<string, unknown> | null }): string | null {
  const id = metadata?.[replayMember];
  return typeof id === 'string' ? id : null;
}
