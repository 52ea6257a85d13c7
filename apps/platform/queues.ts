import { chunkQueue, closeQueue, finaliseQueue, validateQueue } from '#libs/batches/batch-queues.ts';
import { followQueue, startQueue } from '#libs/fine-tuning/fine-tuning-queues.ts';
import { maintenanceQueue } from '../worker/jobs/maintenance.ts';

/** Every queue there is; each process makes sure of all of them, so that it does not matter which one starts first. */
export const allQueues = [
  validateQueue,
  chunkQueue,
  finaliseQueue,
  closeQueue,
  startQueue,
  followQueue,
  maintenanceQueue,
] as const;
