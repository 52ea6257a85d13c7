/** Each bounds one phase of one attempt, in milliseconds. */
export type Timeouts = {
  /** Until a connection is there: waiting for a free one included. */
  connectMs: number;
  /** From the request's last byte to the answer's headers. */
  headersMs: number;
  /** Between two bytes of the answer, and between two events of a stream. */
  idleMs: number;
  /** The whole attempt. */
  totalMs: number;
  /** Until the whole answer is there, of a stream until its first event is. Absent: only the other bounds count. */
  answerMs?: number;
};

/** Long enough for a reasoning model that thinks ten minutes before it says a word (OpenAI's SDKs wait as long). */
export const defaultTimeouts: Timeouts = {
  connectMs: 10_000,
  headersMs: 600_000,
  idleMs: 120_000,
  totalMs: 1_800_000,
};

/** Of small requests that are answered at once or not at all: a list of models, an OAuth token, an image to be sent on. */
export const quickTimeouts: Timeouts = { connectMs: 5_000, headersMs: 10_000, idleMs: 5_000, totalMs: 20_000 };

/** Of the files and jobs of fine-tuning. */
export const tuningTimeouts: Timeouts = { connectMs: 10_000, headersMs: 60_000, idleMs: 30_000, totalMs: 120_000 };

/**
 * The timeouts of an attempt: those of the process, and over them what the call brings (of its config, its target or its
 * headers). The same object when it brings none.
 */
export const timeoutsOf = (process: Timeouts, own: Partial<Timeouts> | undefined): Timeouts =>
  own === undefined ? process : { ...process, ...own };
