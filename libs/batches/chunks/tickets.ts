import { randomInt } from 'node:crypto';
import type { Transaction } from 'kysely';
import { z } from 'zod';
import type { Database, Lane } from '#libs/database/schema.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';

// A ticket says that there is work and names none: a worker that gets it claims whatever is next (turns.ts). A ticket
// that is lost, or sent too often, costs a look. While all slots of all workers are taken, tickets wait, and the age of
// the oldest one shows that more workers are needed.

const Nothing = z.unknown().transform((): object => ({}));

const ticketQueue = (name: string): QueueDefinition<object> => ({
  name,
  payload: Nothing,
  options: {
    // By the key of the ticket: it is not sent again while it waits.
    policy: 'short',
    retryLimit: 0,
    heartbeatSeconds: 30,
    expireInSeconds: 86_399, // pg-boss requires less than a day.
    retentionSeconds: 86_400,
    deleteAfterSeconds: 60,
    notify: true,
  },
});

/** Chunks are ready: call their lines. */
export const linesTickets = ticketQueue('batch-lines');
/** Batches have to be validated or finalised. */
export const filesTickets = ticketQueue('batch-files');

const ticketsOf = (lane: Lane): QueueDefinition<object> => (lane === 'lines' ? linesTickets : filesTickets);

/** The most tickets of a kind that wait: twice the slots of a worker with the default settings. */
const waitingMax = 64;

/** Sends a ticket for each piece of work, up to the maximum, in the transaction that makes it ready. */
export async function sendTickets(
  queue: JobQueue,
  tx: Transaction<Database>,
  lane: Lane,
  count: number,
): Promise<void> {
  // A random first key, so that transactions that send at the same time do not wait for each other.
  const first = randomInt(waitingMax);
  const keys = Array.from({ length: Math.min(count, waitingMax) }, (_value, index) => (first + index) % waitingMax);
  keys.sort((a, b) => a - b); // In one order, so that such transactions do not deadlock either.
  await queue.enqueueMany(
    tx,
    ticketsOf(lane),
    keys.map((key) => ({ payload: {}, singletonKey: String(key) })),
  );
}
