import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';

type Options = {
  /** The lease to which waiting payloads are charged. Without memory for more, the queue is full. */
  memory?: MemoryLease | undefined;
  /**
   * Beyond this many waiting characters `onFull` is called, and not again until the reader has caught up (then
   * `onDrained`).
   */
  charsMax: number;
  onFull: () => void;
  onDrained: () => void;
  /** The reader left the loop before the end. */
  onLeft: () => void;
};

export type PayloadQueue = {
  /** The queue takes the list over. */
  push: (payloads: string[]) => void;
  end: () => void;
  /** Ends the queue with an error, after the waiting payloads have been read. */
  fail: (error: Error) => void;
  /** For one reader. */
  payloads: AsyncIterable<readonly string[]>;
};

/** Fewer characters are not counted, because most readers consume each payload as it arrives. */
const countedCharsMin = 16_384;
/** A text takes two bytes per character if one of its characters is wide. */
const charBytes = 2;

/** Payloads between a socket that pushes and a reader that pulls, in order, with back-pressure. */
export function createPayloadQueue({ memory, charsMax, onFull, onDrained, onLeft }: Options): PayloadQueue {
  type Step = IteratorResult<readonly string[]>;
  let waiting: string[] = [];
  let chars = 0;
  let heldBytes = 0;
  let full = false;
  let ended = false;
  let failure: Error | null = null;
  let reader: { resolve: (step: Step) => void; reject: (error: Error) => void } | null = null;

  const forget = (): void => {
    waiting = [];
    chars = 0;
    if (heldBytes > 0) memory?.give(heldBytes);
    heldBytes = 0;
  };

  /** Charges the waiting payloads. Returns false when there is no memory for them. */
  const hold = (): boolean => {
    const more = charBytes * chars - heldBytes;
    if (memory === undefined || chars < countedCharsMin || more <= 0) return true;
    if (!memory.tryCharge(more)) return false;
    heldBytes += more;
    return true;
  };

  const settle = (): void => {
    if (!reader || (waiting.length === 0 && !ended)) return;
    const { resolve, reject } = reader;
    // This must come first: resuming the socket can push synchronously, and needs the slot of the next reader to be
    // free.
    reader = null;
    if (waiting.length > 0) {
      const value = waiting;
      const wasFull = full;
      forget();
      full = false;
      resolve({ done: false, value });
      if (wasFull) onDrained();
    } else if (failure) reject(failure);
    else resolve({ done: true, value: undefined });
  };

  const iterator: AsyncIterator<readonly string[]> = {
    next: () =>
      new Promise<Step>((resolve, reject) => {
        reader = { resolve, reject };
        settle();
      }),
    return: () => {
      forget();
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
      if (waiting.length === 0) waiting = payloads;
      else for (const payload of payloads) waiting.push(payload);
      for (const payload of payloads) chars += payload.length;
      settle();
      const hasRoom = hold();
      if ((chars > charsMax || !hasRoom) && !full) {
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
