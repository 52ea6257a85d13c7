/** Counts the calls of each group and decides whether a group can start another one without starving the others. */
export type CallShares = {
  /** Whether a call of these groups (the workspace comes first) can begin while `calls` are running. */
  mayBegin(groups: readonly string[], calls: number): boolean;
  begin(groups: readonly string[]): void;
  /** The running calls of a group. */
  calls(group: string): number;
  end(groups: readonly string[], isAnswered: boolean): void;
};

type Share = { calls: number; unanswered: number };

/** The share of all calls that a group of one kind can have. */
type Rule = {
  /** This fraction is reserved for groups with few calls or none. */
  reserved: number;
  /** A group can have this many times the number of free calls. */
  timesFree: number;
  /** A group can have this fraction of the free, unreserved calls unanswered. */
  unanswered: number;
};

/** A single workspace gets 15/16 of the calls. Two busy ones get half each, however many batches they have. */
const ofWorkspace: Rule = { reserved: 1 / 16, timesFree: 15, unanswered: 1 / 2 };
/** A single batch or destination gets 7/8 of the calls. Two get nearly half each. */
const ofOthers: Rule = { reserved: 1 / 8, timesFree: 7, unanswered: 1 / 8 };
/**
 * A group can always have this many calls unanswered, so that its share can grow with its answers even when little is free.
 */
const unansweredMin = 2;
/** A workspace without a call can begin one beyond `callsMax`, up to this many times `callsMax`. */
const timesAllMax = 2;

/**
 * Dynamic thresholds, as network switches use to share their buffers (Choudhury and Hahne, 1998): the share of a group
 * depends on how many calls are free, so that a single group gets nearly all of them and many groups share them. A call
 * belongs to three groups (its workspace, its destination and its batch) and must be within the share of each.
 *
 * This alone does not protect against providers that hang: three groups would take 112, 14 and 2 of 128 calls, and the next
 * one none. So a group can only have a limited number of calls unanswered and gets more with each answer, and some of the
 * calls are reserved for groups with few calls or none. The first call to a new destination is exempt from its workspace's
 * limit on unanswered calls, so that destinations that hang do not block one that works. A workspace without a call can
 * always begin one, even beyond `callsMax`.
 */
export function createCallShares(callsMax: number): CallShares {
  const shares = new Map<string, Share>();
  const reservedOf = ({ reserved }: Rule): number => (Number.isFinite(callsMax) ? Math.floor(callsMax * reserved) : 0);
  const reserved = { workspace: reservedOf(ofWorkspace), others: reservedOf(ofOthers) };

  function mayHaveMore(share: Share, rule: Rule, free: number, unreserved: number, isFirst = false): boolean {
    const most = unreserved > 0 ? rule.timesFree * free : free;
    if (share.calls >= most) return false;
    return isFirst || share.unanswered < Math.max(unansweredMin, unreserved * rule.unanswered);
  }

  return {
    mayBegin([workspace, ...others], calls) {
      if (workspace === undefined) return calls < callsMax;
      const all = shares.get(workspace);
      if (all === undefined) return calls < timesAllMax * callsMax;
      const free = callsMax - calls;
      if (free <= 0) return false;
      const isFirst = others.length > 0 && !shares.has(others[0] as string);
      if (!mayHaveMore(all, ofWorkspace, free, free - reserved.workspace, isFirst)) return false;
      return others.every((group) => {
        const share = shares.get(group);
        return share === undefined || mayHaveMore(share, ofOthers, free, free - reserved.others);
      });
    },
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
    calls: (group) => shares.get(group)?.calls ?? 0,
    end(groups, isAnswered) {
      for (const group of groups) {
        const share = shares.get(group);
        if (share === undefined) continue;
        share.calls -= 1;
        // An answer shows that the group works, so its earlier calls no longer count as unanswered.
        share.unanswered = isAnswered ? 0 : Math.min(share.calls, share.unanswered);
        if (share.calls === 0) shares.delete(group);
      }
    },
  };
}
