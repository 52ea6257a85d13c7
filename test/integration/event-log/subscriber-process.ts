import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createSubscriberRunner } from '#libs/event-log/run-subscribers.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { countingSubscriber } from './counting-subscriber.ts';

// A worker with nothing but a subscriber, to be killed at any moment. Argument: the database's URL.
const logger = createLogger({ name: 'subscriber', level: 'silent' });
const pool = createPool({ connectionString: process.argv[2] ?? '', applicationName: 'sluice-test', max: 2 }, logger);
const runner = createSubscriberRunner({
  db: createDatabase(pool),
  subscribers: [countingSubscriber],
  upcasts: {},
  logger,
  pollMs: 5,
});
await runner.start?.();
console.log('started');
