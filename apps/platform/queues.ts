import { z } from 'zod';
import { filesTickets, linesTickets } from '#libs/batches/chunks/tickets.ts';
import { followQueue, startQueue } from '#libs/fine-tuning/fine-tuning-queues.ts';
import { alertQueue } from '#libs/policies/deliver-alert.ts';
import { logExportQueue } from '#libs/request-log/read/run-log-export.ts';
import { trafficReplayQueue } from '#libs/replays/replay-jobs.ts';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';

// A schedule sends no payload.
const Nothing = z.unknown().transform((): object => ({}));

/** The `priority` of maintenance tasks that take only a moment. */
export const quickTaskPriority = 1;

/** Regular tasks: one job for each task and interval, whichever worker enqueues it first. */
export const maintenanceQueue: QueueDefinition<{ task: string }> = {
  name: 'maintenance-task',
  payload: z.object({ task: z.string() }),
  // Only one job of a task runs at a time.
  key: ({ task }) => task,
  options: {
    retryLimit: 0,
    expireInSeconds: 86_399, // pg-boss requires less than a day.
    // Without a heartbeat, the job of a killed worker would block the next one (`exclusive`) until it expires.
    heartbeatSeconds: 10,
    // Longer than the longest interval, because an ended job prevents others in its interval.
    deleteAfterSeconds: 7_200,
    retentionSeconds: 7_200,
    policy: 'exclusive',
  },
};

/** Compares the read models with the event log. There is one such job at a time. */
export const modelCheckQueue: QueueDefinition<object> = {
  name: 'check-read-models',
  payload: Nothing,
  options: {
    policy: 'exclusive',
    retryLimit: 3,
    retryDelay: 5,
    heartbeatSeconds: 10,
    expireInSeconds: 86_399, // pg-boss requires less than a day.
    retentionSeconds: 86_400,
    deleteAfterSeconds: 3_600,
    notify: true,
  },
};

/** All queues. Each process creates missing ones, so that it does not matter which one starts first. */
export const allQueues = [
  linesTickets,
  filesTickets,
  startQueue,
  followQueue,
  logExportQueue,
  trafficReplayQueue,
  alertQueue,
  maintenanceQueue,
  modelCheckQueue,
] as const;
