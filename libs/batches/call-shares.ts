/** How many of the calls each group has, and whether it leaves enough to the others to begin one more. */
export type CallShares = {
  /** Whether each of the groups may begin a call, of all that `callsMax` allows while `calls` are under way. */
  mayBegin(groups: readonly string[], calls: number): boolean;
  begin(groups: readonly string[]): void;
  end(groups: readonly string[], isAnswered: boolean): void;
};

type Share = { calls: number; unanswered: number };

/** One group alone has seven eighths of the calls, rounded up, and two have nearly half each. */
const shareOfFree = 7;
/** Of the calls that are not kept for others, a group may begin this part before the first answer comes. */
const shareUnanswered = 1 / 8;
/** So many it may have in any case: it grows with its answers, also where little is left. */
const unansweredMin = 2;

/**
 * Dynamic thresholds, as switches share their buffers (Choudhury and Hahne, 1998): what a group may have depends on what
 * is free, so that one alone has nearly all, and many have each a part.
 *
 * That alone does not keep out what hangs: three groups would take 112, 14 and 2 of 128 calls, and the next one none. So
 * a group begins with an eighth, and grows with each answer; and the last eighth is for groups that have none, or few,
 * and grow. Of 128 calls, 30 groups that hang leave one to the next.
 */
export function createCallShares(callsMax: number): CallShares {
  const shares = new Map<string, Share>();
  const kept = Number.isFinite(callsMax) ? Math.floor(callsMax / 8) : 0;

  function mayBeginOf(group: string, free: number): boolean {
    const share = shares.get(group);
    if (share === undefined) return true;
    const spare = free - kept;
    const most = spare > 0 ? shareOfFree * free : free;
    return share.calls < most && share.unanswered < Math.max(unansweredMin, spare * shareUnanswered);
  }

  return {
    mayBegin: (groups, calls) => groups.every((group) => mayBeginOf(group, callsMax - calls)),
    begin(groups) {
      for (const group of groups) {
        const share = shares.get(group);
        if (share === undefined) shares.set(group, { calls: 1, unanswered: 1 });
        else {
          share.calls += 1;
          share.unanswered += 1;
        }
      }
    },
    end(groups, isAnswered) {
      for (const group of groups) {
        const share = shares.get(group);
        if (share === undefined) continue;
        share.calls -= 1;
        // Calls that are under way since before the answer count no more: their group is alive.
        share.unanswered = isAnswered ? 0 : Math.min(share.calls, share.unanswered);
        if (share.calls === 0) shares.delete(group);
      }
    },
  };
}
