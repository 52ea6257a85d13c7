import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import type { RequestedCredential } from '#libs/credentials/requested.ts';
import type { BlobStore, StoredBlob } from '#libs/blobs/blob-store.ts';
import type { BatchCredential } from '#libs/database/schema.ts';
import type { FileRow } from '#libs/files/file-model.ts';
import type { Files } from '#libs/files/files.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { isTerminal } from '../batch/batch.ts';
import { failedRequests, type FailedLines } from './failed-requests.ts';

const conflict = (code: string, message: string): GatewayError =>
  new GatewayError('conflict', code, message, { param: 'batch_id' });

/** The files that the lines are read from. Throws conflict if the batch has no lines to retry. */
export async function retryInputs(files: Files, batch: BatchRow): Promise<{ input: FileRow; error: FileRow }> {
  if (!isTerminal(batch.status)) {
    const message = `The batch is ${batch.status}. Lines can be retried after it has ended. Wait until it ends, or cancel it.`;
    throw conflict('batch_not_ended', message);
  }
  if (batch.error_file_id === null) {
    const why =
      batch.status === 'failed'
        ? 'its input file was invalid. Fix the errors and upload the file again'
        : 'none of its lines failed';
    throw conflict('nothing_to_retry', `This batch has no lines to retry: ${why}.`);
  }
  const input = await files.find(batch.workspace_id, batch.input_file_id);
  const error = await files.find(batch.workspace_id, batch.error_file_id);
  const isGone = (file: FileRow | undefined): boolean => file === undefined || file.deleted_at !== null;
  if (!input || !error || isGone(input) || isGone(error)) {
    const which = isGone(input) ? 'input' : 'error';
    throw conflict('input_file_deleted', `The ${which} file of this batch was deleted, so its lines cannot be read.`);
  }
  return { input, error };
}

/** Writes the chosen lines as a new blob. Throws conflict (`nothing_to_retry`) when there are none. */
export async function copyLines(
  blobs: BlobStore,
  batch: BatchRow,
  files: { input: FileRow; error: FileRow },
  which: FailedLines,
): Promise<StoredBlob> {
  const [input, error] = [await blobs.read(files.input.blob), await blobs.read(files.error.blob)];
  try {
    const lines = failedRequests(batch.id, { input, error }, which);
    const blob = await blobs.put(lines, { leavesReserve: true });
    if (blob.sizeBytes > 0) return blob;
    await blobs.remove(blob.blob);
  } finally {
    input.destroy();
    error.destroy();
  }
  const other = which === 'failed' ? 'unfinished' : 'failed';
  throw conflict(
    'nothing_to_retry',
    `This batch has no lines that are '${which}'. Try "lines": "${other}" or "all_failed".`,
  );
}

/** Whether the request overrides the target of the original batch. */
export const namesTarget = ({ virtualKey, provider, config, providerKey }: RequestedCredential): boolean =>
  virtualKey !== null || provider !== null || config !== null || providerKey !== null;

type Destination = Pick<RequestedCredential, 'virtualKey' | 'provider' | 'customHost'>;

/**
 * The target of the original batch, as credentials of a call. The current version of a stored config is used. Throws
 * conflict (`credentials_not_kept`).
 */
export function sameTarget(
  snapshot: Pick<AccessSnapshot, 'findCredentialById'>,
  { target, workspace_id: workspaceId }: Pick<BatchRow, 'target' | 'workspace_id'>,
): Partial<RequestedCredential> {
  const lost = (): GatewayError =>
    conflict(
      'credentials_not_kept',
      'The credentials sent with the original batch were deleted when it ended. Send them again, as headers or gateway_options.',
    );
  const destinationOf = (credential: BatchCredential): Partial<Destination> => {
    if (credential.type === 'none') return {};
    if (credential.type === 'provider') {
      if (credential.secret_id !== null) throw lost();
      return { provider: credential.provider, customHost: credential.custom_host };
    }
    const slug = snapshot.findCredentialById(workspaceId, credential.virtual_key_id)?.slug;
    if (slug === undefined) throw lost();
    return { virtualKey: { slug, param: 'batch_id' } };
  };
  if (!('caller' in target)) return destinationOf(target);
  if (typeof target.secret_id === 'string' && target.type === 'inline_config') throw lost();
  const value = target.type === 'config' ? target.config_id : target.config;
  return { ...destinationOf(target.caller), config: { value, param: 'batch_id' } };
}
