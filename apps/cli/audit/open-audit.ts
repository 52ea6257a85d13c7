import { openBlobs } from '#apps/platform/blobs.ts';
import { readEnv } from '#libs/kernel/read-env.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { auditFolder } from '#libs/seal/seal-log.ts';
import { CliConfig } from '../operate/config.ts';
import { readMasterKeys } from '../operate/keys.ts';
import type { ExportDeps } from './export-log.ts';

/** Opens the trees of the configured blob store, and the keys of the log. */
export async function openAudit(): Promise<Pick<ExportDeps, 'folder' | 'keys'>> {
  const config = readEnv(CliConfig);
  const blobs = await openBlobs(config);
  return { folder: blobs.folder(auditFolder), keys: createAuditKeys(await readMasterKeys(), config.SLUICE_AUDIT_KEY) };
}
