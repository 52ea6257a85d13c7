import { openBlobs } from '#apps/platform/blobs.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { readEnv } from '#libs/kernel/read-env.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { auditFolder } from '#libs/seal/seal-log.ts';
import { CliConfig } from '../operate/config.ts';
import { readMasterKeys } from '../operate/keys.ts';
import type { AuditDeps } from './checkpoints.ts';

/** Opens the trees and the files of the configured blob store, and the keys of the log. */
export async function openAudit(): Promise<Omit<AuditDeps, 'db'> & { blobs: BlobStore }> {
  const config = readEnv(CliConfig);
  const blobs = await openBlobs(config);
  const keys = createAuditKeys(await readMasterKeys(), config.SLUICE_AUDIT_KEY);
  return { folder: blobs.folder(auditFolder), keys, blobs };
}
