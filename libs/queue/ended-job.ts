/** The end of one claim of a job, or of other held work, in the process that had it. */
export type EndedJob = {
  queue: string;
  id: string;
  retryCount: number;
  payload: object;
  /** How long it could have started before it was claimed, by the database's clock; null: not known. */
  waitedMs: number | null;
  startedAtMs: number;
  endedAtMs: number;
  /** The last outcome that its handler reported. Otherwise `completed`, or `failed` if the handler threw. */
  outcome: string;
  /** The error of the handler; null: there was none. */
  error: unknown;
};

/** Must not throw. No job waits for it. */
export type OnJobEnded = (job: EndedJob) => void;

/** Runs a handler, which can note its outcome in a word, and reports its end in every case. Rethrows its error. */
export async function runAndReport(
  onEnded: OnJobEnded,
  job: Pick<EndedJob, 'queue' | 'id' | 'retryCount' | 'payload' | 'waitedMs'>,
  handler: (note: (outcome: string) => void) => Promise<void>,
): Promise<void> {
  const startedAtMs = Date.now();
  let noted: string | null = null;
  const tell = (outcome: string, error: unknown): void =>
    onEnded({ ...job, startedAtMs, endedAtMs: Date.now(), outcome, error });
  try {
    await handler((outcome) => {
      noted = outcome;
    });
  } catch (error) {
    tell('failed', error);
    throw error;
  }
  tell(noted ?? 'completed', null);
}
