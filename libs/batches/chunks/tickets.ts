import { randomInt } from 'node:crypto';
import type { Transaction } from 'kysely';
import { z } from 'zod';
import type { Database, Lane } from '#libs/database/schema.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';

// A ticket says that a lane has work and names none: a worker that gets it claims whatever is next (turns.ts). A ticket
// that is lost, or sent too often, costs a look. While all slots of all workers are taken, tickets wait, and the age of
// the oldest one shows that more workers are needed.

type Ticket = { lane: Lane; number: number };

const ticketQueue = (name: string): QueueDefinition<Ticket> => ({
  name,
  payload: z.object({ lane: z.enum(['lines', 'small_files', 'large_files']), number: z.number() }),
  // A ticket is not sent again while the one with its number waits.
  key: ({ lane, number }) => `${lane} ${number}`,
  options: {
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

const ticketsOf = (lane: Lane): QueueDefinition<Ticket> => (lane === 'lines' ? linesTickets : filesTickets);

/** The most tickets of a kind that wait: twice the slots of a worker with the default settings. */
const waitingMax = 64;

/** Sends a ticket for each piece of work, up to the maximum, in the transaction that makes it ready. */
export async function sendTickets(
  queue: JobQueue,
  tx: Transaction<Database>,
  lane: Lane,
  count: number,
): Promise<void> {
  // A random first number, so that transactions that send at the same time do not wait for each other.
  const first = randomInt(waitingMax);
  const numbers = Array.from({ length: Math.min(count, waitingMax) }, (_value, index) => (first + index) % waitingMax);
  numbers.sort((a, b) => a - b);
  await queue.enqueueMany(
    tx,
    ticketsOf(lane),
    numbers.map((number) => ({ lane, number })),
  );
}
