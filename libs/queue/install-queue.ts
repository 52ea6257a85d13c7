import type { Logger } from '#libs/kernel/logger.ts';
import { createJobQueue, type QueueDefinition } from './job-queue.ts';

/** Creates pg-boss's schema and the queues in a database, as the first process that uses it would. */
export async function installQueue(
  connectionString: string,
  queues: readonly Omit<QueueDefinition<object>, 'payload'>[],
  logger: Logger,
): Promise<void> {
  const queue = createJobQueue({ connectionString, role: 'sender', queues, logger, poolSizeMax: 1 });
  await queue.start?.();
  await queue.stop?.();
}
