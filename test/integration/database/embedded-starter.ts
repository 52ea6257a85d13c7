// A process that runs an embedded Postgres, to be killed by tests. Options as JSON in the first argument; prints one
// line of JSON, {pid, connectionString} or {error}, and runs until it is ended; SIGTERM ends it in order.
import { startEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';

const options = JSON.parse(process.argv[2] ?? '{}') as { dataDir: string };
const logger = createLogger({ name: 'starter', level: 'silent' });
try {
  const server = await startEmbeddedPostgres({ durable: false, lockWaitMs: 0, ...options, logger });
  process.on('SIGTERM', () => void server.stop().then(() => process.exit(0)));
  console.log(JSON.stringify({ pid: server.pid, connectionString: server.connectionString }));
} catch (error) {
  console.log(JSON.stringify({ error: error instanceof Error ? error.message : 'unknown' }));
  process.exit(1);
}
