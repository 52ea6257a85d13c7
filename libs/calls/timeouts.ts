/** Each of these limits one phase of one attempt, in milliseconds. */
export type Timeouts = {
  /** Until there is a connection, including the wait for a free one. */
  connectMs: number;
  /** From the last byte of the request to the headers of the answer. */
  headersMs: number;
  /** Between two bytes of the answer, and between two events of a stream. */
  idleMs: number;
  /** The whole attempt. */
  totalMs: number;
  /** Until the whole answer, or the first event of a stream, has arrived. Absent: only the other limits apply. */
  answerMs?: number;
};

/** Long enough for a reasoning model that thinks for ten minutes before its first byte. OpenAI's SDKs wait as long. */
export const defaultTimeouts: Timeouts = {
  connectMs: 10_000,
  headersMs: 600_000,
  idleMs: 120_000,
  totalMs: 1_800_000,
};

/** For small requests that are answered quickly or not at all: a list of models, an OAuth token, an image. */
export const quickTimeouts: Timeouts = { connectMs: 5_000, headersMs: 10_000, idleMs: 5_000, totalMs: 20_000 };

/** For the files and jobs of fine-tuning. */
export const tuningTimeouts: Timeouts = { connectMs: 10_000, headersMs: 60_000, idleMs: 30_000, totalMs: 120_000 };

/**
 * Returns the timeouts of an attempt: those of the process, overridden by those of the call (from its config, its
 * target or its headers). The same object when the call has none.
 */
export const mergeTimeouts = (process: Timeouts, own: Partial<Timeouts> | undefined): Timeouts =>
  own === undefined ? process : { ...process, ...own };
