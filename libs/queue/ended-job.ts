import type { ClaimedJob } from './queue-definition.ts';

/** What became of one claim of a job, in the process that had it. */
export type EndedJob = {
  queue: string;
  id: string;
  retryCount: number;
  payload: object;
  /** How long it could have started before it was claimed, by the database's clock. */
  waitedMs: number;
  startedAtMs: number;
  endedAtMs: number;
  /** What its handler noted last. Otherwise `completed`, or `failed` if the handler threw. */
  outcome: string;
  /** What the handler threw; null: nothing. */
  error: unknown;
};

/** Must not throw, and nothing waits for it. */
export type OnJobEnded = (job: EndedJob) => void;

/** Of pg-boss; only read where somebody wants to know of ended jobs. */
type Times = { startAfter: Date; startedOn: Date };

/** Runs the handler of a claimed job, and tells of its end, whichever it is. Rethrows what the handler throws. */
export async function runAndTell<Payload extends object>(
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
