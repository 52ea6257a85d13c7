import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createRequestLog } from '#libs/request-log/write/request-log.ts';
import { logEntry } from '#test/log-entry.ts';

// A process that writes 128 rows, records five more that wait in memory, and then does nothing until it is killed.

const logger = createLogger({ name: 'log-writer', level: 'silent' });
const pool = createPool({ connectionString: process.argv[2] ?? '', applicationName: 'log-writer' }, logger);
const log = createRequestLog({
  app: 'worker',
  db: createDatabase(pool),
  pool,
  logger,
  clock: { now: () => Date.now() },
  groupWaitMs: 600_000,
  heartbeatMs: 50,
});
await log.start?.();
for (let index = 0; index < 128; index += 1) log.record(logEntry());
await log.flush();
for (let index = 0; index < 5; index += 1) log.record(logEntry());
process.stdout.write(`${log.processId}\n`);
setInterval(() => {}, 600_000);
