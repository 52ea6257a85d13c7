import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { createRequestLog } from '#libs/request-log/write/request-log.ts';
import { logEntry } from '#test/log-entry.ts';

// A process whose database does not answer: records 300 rows, tells when they are on the disk, and then does nothing until
// it is killed.

const [connectionString = '', folder = ''] = process.argv.slice(2);
const logger = createLogger({ name: 'keeping-writer', level: 'silent' });
const pool = createPool({ connectionString, applicationName: 'keeping-writer' }, logger);
const log = createRequestLog({
  app: 'api',
  db: createDatabase(pool),
  pool,
  logger,
  clock: { now: () => Date.now() },
  disk: { folder, bytesMax: 1_048_576 },
});
await log.start?.();
for (let index = 0; index < 300; index += 1) log.record(logEntry());
while (log.stats().rowsOnDisk < 300) await sleep(20);
process.stdout.write(`${log.processId}\n`);
setInterval(() => {}, 600_000);
