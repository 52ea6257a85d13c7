import cluster from 'node:cluster';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { reportFailedStart, runProcess } from '#libs/kernel/lifecycle.ts';
import { readEnv } from '#libs/kernel/read-env.ts';
import { describeUnknownVariables } from '../known-variables.ts';
import { ApiConfig } from './config.ts';

const logger = createLogger({ name: 'api', level: 'info' });
try {
  const config = readEnv(ApiConfig);
  logger.level = config.SLUICE_LOG_LEVEL;
  // `npm start` has printed it already.
  if (process.send === undefined) for (const text of describeUnknownVariables()) logger.warn(text);
  const deadlineMs = config.SLUICE_STOP_DELAY + config.SLUICE_STOP_DEADLINE + 10_000;
  // Each process loads only the code that it runs. The parent of several needs much less memory in this way.
  if (cluster.isPrimary && config.SLUICE_API_PROCESSES > 1) {
    const { composeProcesses } = await import('./processes/compose-processes.ts');
    // Longer than the deadline of each process, so that it gives up and logs the reason.
    const stopMs = deadlineMs + 500;
    await runProcess(composeProcesses(config, { logger, stopMs }), { logger, deadlineMs: stopMs + 500 });
  } else {
    const { composeApi } = await import('./compose.ts');
    const { linkToParent } = await import('./processes/parent-link.ts');
    const link = cluster.worker === undefined ? undefined : await linkToParent(cluster.worker);
    const { parts } = await composeApi(config, logger, link);
    await runProcess(parts, { logger, deadlineMs });
  }
} catch (error) {
  reportFailedStart(logger, error);
  process.exit(1); // Open resources, such as a database connection, would prevent the process from ending.
}
