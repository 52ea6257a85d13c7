/** How many of the calls each group has, and whether it leaves enough to the others to begin one more. */
export type CallShares = {
  /** Whether a call of these groups, the workspace first, may begin while `calls` are under way. */
  mayBegin(groups: readonly string[], calls: number): boolean;
  begin(groups: readonly string[]): void;
  end(groups: readonly string[], isAnswered: boolean): void;
};

type Share = { calls: number; unanswered: number };

/** How much of the calls the groups of one kind may have. */
type Rule = {
  /** The part that is for groups that have none, or few, and grow. */
  kept: number;
  /** A group may have so many times what is free. */
  timesFree: number;
  /** Of what is not kept, a group may begin this part before an answer comes. */
  unanswered: number;
};

/** A workspace alone has fifteen sixteenths of the calls: two such workspaces have half each, however many batches. */
const ofWorkspace: Rule = { kept: 1 / 16, timesFree: 15, unanswered: 1 / 2 };
/** A batch, or what goes to one place, alone has seven eighths, and two have nearly half each. */
const ofOthers: Rule = { kept: 1 / 8, timesFree: 7, unanswered: 1 / 8 };
/** So many it may have unanswered in any case: it grows with its answers, also where little is left. */
const unansweredMin = 2;
/** With what workspaces begin that have no call, there may be so many times the calls. */
const timesAllMax = 2;

/**
 * Dynamic thresholds, as switches share their buffers (Choudhury and Hahne, 1998): what a group may have depends on what
 * is free, so that one alone has nearly all, and many have each a part. The groups of a call are its workspace, where it
 * goes, and its batch, and each has to leave enough.
 *
 * That alone does not keep out what hangs: three groups would take 112, 14 and 2 of 128 calls, and the next one none. So
 * a group begins with a part, and grows with each answer; and the last part is for groups that have none, or few, and
 * grow. Of what a workspace may have unanswered, each new place has one call nevertheless: those that hang must not keep
 * out one that does not. And a workspace without a call may always begin one, beyond what all may have if need be.
 */
export function createCallShares(callsMax: number): CallShares {
  const shares = new Map<string, Share>();
  const keptOf = ({ kept }: Rule): number => (Number.isFinite(callsMax) ? Math.floor(callsMax * kept) : 0);
  const kept = { workspace: keptOf(ofWorkspace), others: keptOf(ofOthers) };

  function mayHaveMore(share: Share, rule: Rule, free: number, spare: number, isFirst = false): boolean {
    const most = spare > 0 ? rule.timesFree * free : free;
    if (share.calls >= most) return false;
    return isFirst || share.unanswered < Math.max(unansweredMin, spare * rule.unanswered);
  }

  return {
    mayBegin([workspace, ...others], calls) {
      if (workspace === undefined) return calls < callsMax;
      const all = shares.get(workspace);
      if (all === undefined) return calls < timesAllMax * callsMax;
      const free = callsMax - calls;
      if (free <= 0) return false;
      const isFirst = others.length > 0 && !shares.has(others[0] as string);
      if (!mayHaveMore(all, ofWorkspace, free, free - kept.workspace, isFirst)) return false;
      return others.every((group) => {
        const share = shares.get(group);
        return share === undefined || mayHaveMore(share, ofOthers, free, free - kept.others);
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
