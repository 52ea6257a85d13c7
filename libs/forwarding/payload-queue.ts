type Options = {
  /** Past this many waiting characters `onFull` is called, once until the reader came back (then `onDrained`). */
  charsMax: number;
  onFull: () => void;
  onDrained: () => void;
  /** The reader left the loop before the end. */
  onLeft: () => void;
};

export type PayloadQueue = {
  push: (payloads: readonly string[]) => void;
  end: () => void;
  /** Ends with an error, after what is waiting was read. */
  fail: (error: Error) => void;
  /** For one reader. */
  payloads: AsyncIterable<readonly string[]>;
};

/** Payloads between a socket that pushes and a reader that pulls, in order, with back-pressure. */
export function createPayloadQueue({ charsMax, onFull, onDrained, onLeft }: Options): PayloadQueue {
  type Step = IteratorResult<readonly string[]>;
  let waiting: string[] = [];
  let chars = 0;
  let full = false;
  let ended = false;
  let failure: Error | null = null;
  let reader: { resolve: (step: Step) => void; reject: (error: Error) => void } | null = null;

  const take = (): Step => {
    const value = waiting;
    waiting = [];
    chars = 0;
    if (full) {
      full = false;
      onDrained();
    }
    return { done: false, value };
  };

  const settle = (): void => {
    if (!reader) return;
    const { resolve, reject } = reader;
    if (waiting.length > 0) resolve(take());
    else if (failure) reject(failure);
    else if (ended) resolve({ done: true, value: undefined });
    else return;
    reader = null;
  };

  const iterator: AsyncIterator<readonly string[]> = {
    next: () =>
      new Promise<Step>((resolve, reject) => {
        reader = { resolve, reject };
        settle();
      }),
    return: () => {
      waiting = [];
      failure = null;
      if (!ended) {
        ended = true;
        onLeft();
      }
      return Promise.resolve({ done: true, value: undefined });
    },
  };

  return {
    push: (payloads) => {
      if (ended) return;
      for (const payload of payloads) {
        waiting.push(payload);
        chars += payload.length;
      }
      settle();
      if (chars > charsMax && !full) {
        full = true;
        onFull();
      }
    },
    end: () => {
      ended = true;
      settle();
    },
    fail: (error) => {
      if (ended) return;
      ended = true;
      failure = error;
      settle();
    },
    payloads: { [Symbol.asyncIterator]: () => iterator },
  };
}
