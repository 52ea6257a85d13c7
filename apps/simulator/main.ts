import { reportFailedStart, runProcess } from '#libs/kernel/lifecycle.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { readConfig } from './config.ts';
import { createSimulator } from './server.ts';

const stopDeadlineMs = 10_000;

const config = readConfigOrExit();
const logger = createLogger({ name: 'simulator', level: config.logLevel });
const simulator = createSimulator({ ...config.simulator, logger });
const listener = {
  name: 'listener',
  start: async () => {
    const { url } = await simulator.start();
    logger.info({ url }, 'simulator listening');
  },
  stop: () => simulator.stop(),
};
await runProcess([listener], { logger, deadlineMs: config.simulator.drainMs + stopDeadlineMs });

function readConfigOrExit(): ReturnType<typeof readConfig> {
  try {
    return readConfig();
  } catch (error) {
    reportFailedStart(createLogger({ name: 'simulator', level: 'info' }), error);
    process.exit(1);
  }
}
