import { createLogger } from '#libs/kernel/logging/logger.ts';
import { reportFailedStart, runProcess } from '#libs/kernel/lifecycle.ts';
import { readEnv } from '#libs/kernel/read-env.ts';
import { describeUnknownVariables } from '../known-variables.ts';
import { composeApi } from './compose.ts';
import { ApiConfig } from './config.ts';

const logger = createLogger({ name: 'api', level: 'info' });
try {
  const config = readEnv(ApiConfig);
  logger.level = config.SLUICE_LOG_LEVEL;
  // `npm start` has printed it already.
  if (process.send === undefined) for (const text of describeUnknownVariables()) logger.warn(text);
  const { parts } = await composeApi(config, logger);
  await runProcess(parts, { logger, deadlineMs: config.SLUICE_STOP_DELAY + config.SLUICE_STOP_DEADLINE + 10_000 });
} catch (error) {
  reportFailedStart(logger, error);
  process.exit(1); // Open resources, such as a database connection, would prevent the process from ending.
}
