import type { ClaimedJob } from './queue-definition.ts';

/** The end of one claim of a job, in the process that had it. */
export type EndedJob = {
  queue: string;
  id: string;
  retryCount: number;
  payload: object;
  /** How long it could have started before it was claimed, by the database's clock. */
  waitedMs: number;
  startedAtMs: number;
  endedAtMs: number;
  /** The last outcome that its handler reported. Otherwise `completed`, or `failed` if the handler threw. */
  outcome: string;
  /** The error of the handler; null: there was none. */
  error: unknown;
};

/** Must not throw. No job waits for it. */
export type OnJobEnded = (job: EndedJob) => void;

/** pg-boss's times. They are only read if there is a listener for ended jobs. */
type Times = { startAfter: Date; startedOn: Date };

/** Runs the handler of a claimed job, and reports its end in every case. Rethrows the error of the handler. */
export async function runAndReport<Payload extends object>(
  onEnded: OnJobEnded,
  queue: string,
  { startAfter, startedOn }: Times,
  job: ClaimedJob<Payload>,
  handler: (job: ClaimedJob<Payload>) => Promise<void>,
): Promise<void> {
  const startedAtMs = Date.now();
  let noted: string | null = null;
  const tell = (outcome: string, error: unknown): void => {
    onEnded({
      queue,
      id: job.id,
      retryCount: job.retryCount,
      payload: job.payload,
      waitedMs: Math.max(0, startedOn.getTime() - startAfter.getTime()),
      startedAtMs,
      endedAtMs: Date.now(),
      outcome,
      error,
    });
  };
  try {
    await handler({
      ...job,
      note: (outcome) => {
        noted = outcome;
      },
    });
  } catch (error) {
    tell('failed', error);
    throw error;
  }
  tell(noted ?? 'completed', null);
}
