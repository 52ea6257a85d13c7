export type GroupOptions = {
  /** A group is written when it has this many rows (default 64) … */
  groupRowsMin?: number;
  /** … or this long after its first row (default 250 ms) … */
  groupWaitMs?: number;
  /**
   * … but, unless it has `groupRowsMax`, not before this much time since the previous group began. Default 50 ms: each group
   * has a fixed cost here and in Postgres, so a busy process should write fewer and larger ones.
   */
  groupIntervalMs?: number;
  /**
   * The maximum of rows per group. Rows are sealed 64 at a time, and a group consists of whole seals. Default 512, so
   * that a slow database can catch up.
   */
  groupRowsMax?: number;
};

/** Decides when `writeGroup` runs: one write at a time, as the options say. */
export function createGroupSchedule(
  options: GroupOptions & {
    groupRowsMax: number;
    /** The number of rows that can be written. */
    waitingRows: () => number;
    writeGroup: () => Promise<void>;
  },
) {
  const { groupRowsMin = 64, groupRowsMax, groupWaitMs = 250, groupIntervalMs = 50, waitingRows, writeGroup } = options;
  let timer: NodeJS.Timeout | undefined;
  /** Runs for `groupIntervalMs` from the start of a group. */
  let pause: NodeJS.Timeout | undefined;
  let writing: Promise<void> | undefined;

  /** Starts a write if one is due, or sets a timer for it. Called for every row. */
  const wake = (): void => {
    if (writing) return;
    const rows = waitingRows();
    if (rows === 0) return;
    if (rows >= (pause ? groupRowsMax : groupRowsMin)) void writeNow();
    else timer ??= setTimeout(writeNow, groupWaitMs);
  };

  /** Writes a group now, unless one is being written. Resolves when that write has ended. */
  const writeNow = (): Promise<void> => {
    clearTimeout(timer);
    timer = undefined;
    pause ??= setTimeout(() => {
      pause = undefined;
      wake();
    }, groupIntervalMs);
    writing ??= writeGroup().finally(() => {
      writing = undefined;
      wake();
    });
    return writing;
  };

  const stopTimers = (): void => {
    clearTimeout(timer);
    clearTimeout(pause);
  };

  return { wake, writeNow, stopTimers };
}
