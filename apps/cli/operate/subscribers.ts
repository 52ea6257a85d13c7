import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { collectUpcasts } from '#libs/event-log/inline-model.ts';
import { eventsBehindMax, rebuildSubscriber, retryNow, type SubscriberState } from '#libs/event-log/subscriber.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { inlineModels } from '../../platform/models.ts';
import { subscribers } from '../../platform/subscribers.ts';

/** Throws ConfigurationError for an unknown name. */
export async function restartSubscriber(db: Kysely<Database>, name: string): Promise<void> {
  if (!(await retryNow(db, name))) throw unknown(name);
}

/** Returns the number of events applied. Throws ConfigurationError for an unknown name, or one without tables. */
export async function rebuildFromLog(
  db: Kysely<Database>,
  name: string,
  onProgress: (events: number) => void,
): Promise<number> {
  const subscriber = subscribers.find((each) => each.name === name);
  if (!subscriber) throw unknown(name);
  if (subscriber.tables.length === 0) {
    throw new ConfigurationError(
      `The subscriber ${name} cannot be rebuilt, because its table is not derived from the log.`,
    );
  }
  return await rebuildSubscriber(db, subscriber, collectUpcasts(inlineModels), onProgress);
}

const unknown = (name: string): ConfigurationError =>
  new ConfigurationError(`There is no subscriber ${name}. To list them: sluice subscribers list`);

/** The state of a subscriber as one line of text. */
export function describeSubscriber(state: SubscriberState): string {
  const { name, eventsBehind, secondsBehind, failures, lastError, retryAt } = state;
  const many = eventsBehind >= eventsBehindMax ? ' or more' : '';
  const lag = eventsBehind === 0 ? 'up to date' : `${eventsBehind}${many} events behind, ${Math.ceil(secondsBehind)} s`;
  if (failures === 0) return `${name}: ${lag}`;
  return `${name}: ${lag}; failed ${failures} times, next try ${retryAt?.toISOString() ?? 'now'}: ${lastError}`;
}
