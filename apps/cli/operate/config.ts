import { z } from 'zod';
import { platformFields } from '../../platform/config.ts';
import { WorkerConfig } from '../../worker/config.ts';

/**
 * The variables that the commands read. All are optional here; a command reports an error if one that it needs is missing.
 */
export const CliConfig = z.object({
  DATABASE_URL: platformFields.DATABASE_URL.optional(),
  SLUICE_DATABASE_DIRECT_URL: platformFields.SLUICE_DATABASE_DIRECT_URL,
  SLUICE_MASTER_KEY: platformFields.SLUICE_MASTER_KEY.optional(),
  SLUICE_AUDIT_KEY: platformFields.SLUICE_AUDIT_KEY,
  SLUICE_DATA_DIR: platformFields.SLUICE_DATA_DIR,
  SLUICE_BLOBS: platformFields.SLUICE_BLOBS,
  SLUICE_S3_ENDPOINT: platformFields.SLUICE_S3_ENDPOINT,
  SLUICE_S3_REGION: platformFields.SLUICE_S3_REGION,
  SLUICE_S3_PATH_STYLE: platformFields.SLUICE_S3_PATH_STYLE,
  SLUICE_REQUEST_LOG_RETENTION: WorkerConfig.shape.SLUICE_REQUEST_LOG_RETENTION,
});
export type CliConfig = z.output<typeof CliConfig>;
