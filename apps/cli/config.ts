import { z } from 'zod';
import { platformFields } from '../platform/config.ts';

/** What the commands read from the environment; a command asks for what it needs. */
export const CliConfig = z.object({
  DATABASE_URL: platformFields.DATABASE_URL.optional(),
  SLUICE_MASTER_KEY: platformFields.SLUICE_MASTER_KEY.optional(),
  SLUICE_DATA_DIR: platformFields.SLUICE_DATA_DIR,
});
export type CliConfig = z.output<typeof CliConfig>;
