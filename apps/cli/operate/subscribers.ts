import { createDatabase } from '#libs/database/pool.ts';
import { upcastsOf } from '#libs/event-log/inline-model.ts';
import {
  eventsBehindMax,
  listSubscribers,
  rebuildSubscriber,
  retryNow,
  type SubscriberState,
} from '#libs/event-log/subscriber.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { inlineModels } from '../../platform/models.ts';
import { subscribers } from '../../platform/subscribers.ts';
import { withMigratedPool } from './migrated-pool.ts';

const applicationName = 'sluice-subscribers';

/** All subscribers that the database knows. Throws ConfigurationError if migrations are pending, as the others here. */
export async function readSubscribers(
  { connectionString }: { connectionString: string },
  logger: Logger,
): Promise<SubscriberState[]> {
  return await withMigratedPool({ connectionString, applicationName }, logger, (pool) =>
    listSubscribers(createDatabase(pool)),
  );
}

/** Throws ConfigurationError for an unknown name. */
export async function restartSubscriber(
  { connectionString, name }: { connectionString: string; name: string },
  logger: Logger,
): Promise<void> {
  const isKnown = await withMigratedPool({ connectionString, applicationName }, logger, (pool) =>
    retryNow(createDatabase(pool), name),
  );
  if (!isKnown) throw unknown(name);
}

/** Returns the number of events applied here; workers that run apply some of them. Throws ConfigurationError for an unknown name. */
export async function rebuildFromLog(
  options: { connectionString: string; name: string; onProgress: (events: number) => void },
  logger: Logger,
): Promise<number> {
  const { connectionString, name, onProgress } = options;
  const subscriber = subscribers.find((each) => each.name === name);
  if (!subscriber) throw unknown(name);
  return await withMigratedPool({ connectionString, applicationName }, logger, (pool) =>
    rebuildSubscriber(createDatabase(pool), subscriber, upcastsOf(inlineModels), onProgress),
  );
}

const unknown = (name: string): ConfigurationError =>
  new ConfigurationError(`There is no subscriber ${name}: sluice subscribers list shows their names.`);

/** One line of text. */
export function describeSubscriber(state: SubscriberState): string {
  const { name, eventsBehind, secondsBehind, failures, lastError, retryAt } = state;
  const many = eventsBehind >= eventsBehindMax ? ' or more' : '';
  const lag = eventsBehind === 0 ? 'up to date' : `${eventsBehind}${many} events behind, ${Math.ceil(secondsBehind)} s`;
  if (failures === 0) return `${name}: ${lag}`;
  return `${name}: ${lag}; failed ${failures} times, next try ${retryAt?.toISOString() ?? 'now'}: ${lastError}`;
}

/** One line of JSON. */
export function subscriberToJson(state: SubscriberState): string {
  const { epoch, transactionId, position } = state.checkpoint;
  return JSON.stringify({
    name: state.name,
    checkpoint: { epoch, transaction_id: transactionId, position },
    events_behind: state.eventsBehind,
    seconds_behind: state.secondsBehind,
    failures: state.failures,
    last_error: state.lastError,
    retry_at: state.retryAt,
    moved_at: state.movedAt,
  });
}
