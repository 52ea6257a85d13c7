/**
 * How many calls of one credential and model can be in flight, in all processes together, and the shares of the
 * processes. Like the leases of a counter, a share is a part of the limit that only one process uses.
 */
export type CallLimit = {
  /** The sum that the processes have learned. Its fraction belongs to no share. */
  learned: number;
  /** Whether the provider has ever answered a call. */
  isAnswered: boolean;
  /** When the provider last rejected a call; null: never. */
  rejectedAtMs: number | null;
  /** The last burst of rejections. The limit falls to half in it at most. */
  burst: { sinceMs: number; floor: number } | null;
  shares: Readonly<Record<string, CallShare>>;
};

type CallShare = CallDemand & {
  /** How many background calls the process can have in flight. */
  grant: number;
  /** The number of its last report. */
  number: number;
  atMs: number;
};

type CallDemand = {
  /** Live calls to leave room for. They never wait. */
  live: number;
  /** The most background calls that were in flight since the last report. */
  background: number;
  /** Whether background calls had to wait for the limit. */
  wantsMore: boolean;
};

/** The report of a process about its calls. */
export type CallReport = CallDemand & {
  /** Counts the reports of the holder from 1. */
  number: number;
  /** The number of the last report that was answered; 0: none. */
  answered: number;
  /** How many calls the holder would have in flight, live ones included, by what it has learned since that answer. */
  limit: number;
  /** The whole limit as the holder last knew it, in case the database has lost it. */
  whole: number;
  isAnswered: boolean;
  /** Whether a call was rejected since the last report. */
  isRejected: boolean;
  /** How long ago a call was last rejected; null: never. */
  rejectedAgoMs: number | null;
};

export type CallGrant = Pick<CallLimit, 'learned' | 'isAnswered'> & {
  /** How many background calls can be in flight. */
  background: number;
  rejectedAgoMs: number | null;
};

/** With how many calls a limit begins. */
export const firstLimit = 32;
/** A process that has not reported for this long is dead, or will get a new share. */
export const shareMs = 10_000;
const learnedMax = 100_000;
/** Rejections within this time of each other belong to one burst. Processes report them up to a second later. */
const burstMs = 2_000;

/** Whether a process has background calls. */
export const isWorking = ({ background, wantsMore }: Pick<CallDemand, 'background' | 'wantsMore'>): boolean =>
  background > 0 || wantsMore;

/**
 * Applies the report of a process and renews its share. Live calls come first. The rest is shared equally by the
 * processes with background calls. What other processes hold, or still have in
 * flight, is not granted again. Pure; the limit is locked meanwhile.
 */
export function renewShare(
  before: CallLimit,
  holder: string,
  report: CallReport,
  nowMs: number,
): { limit: CallLimit; grant: CallGrant } {
  const { number, live, background, wantsMore } = report;
  // A share from the future is from before the clock was set back.
  const current = Object.entries(before.shares).filter(([, { atMs }]) => Math.abs(nowMs - atMs) < shareMs);
  const { [holder]: own, ...others } = Object.fromEntries(current);
  let held = 0;
  for (const other of Object.values(others)) held += other.live + Math.max(other.grant, other.background);
  // If the last answer was lost, the holder's limit is not based on its present share.
  const change = own?.number === report.answered ? report.limit - own.live - own.grant : 0;
  const burst = report.isRejected ? burstAt(before, nowMs) : before.burst;
  // The provider has not accepted more than what all processes had in flight.
  const accepted = report.isRejected ? report.limit + held : Number.POSITIVE_INFINITY;
  const floor = report.isRejected ? (burst?.floor ?? 1) : 1;
  const learned = Math.min(learnedMax, Math.max(floor, Math.min(before.learned + change, accepted)));
  const rejectedAtMs = latest(before.rejectedAtMs, report.rejectedAgoMs === null ? null : nowMs - report.rejectedAgoMs);
  const isAnswered = before.isAnswered || report.isAnswered;
  const share = { live, background, wantsMore, grant: 0, number, atMs: nowMs };
  if (isWorking(report)) {
    const fair = fairShare({ ...others, [holder]: share }, holder, learned);
    share.grant = Math.max(0, Math.min(fair, Math.floor(learned - live - held)));
  }
  const shares = isWorking(report) || live > 0 ? { ...others, [holder]: share } : others;
  return {
    limit: { learned, isAnswered, rejectedAtMs, burst, shares },
    grant: {
      learned,
      isAnswered,
      background: share.grant,
      rejectedAgoMs: rejectedAtMs === null ? null : Math.max(0, nowMs - rejectedAtMs),
    },
  };
}

function burstAt({ burst, learned }: CallLimit, nowMs: number): CallLimit['burst'] {
  return burst !== null && Math.abs(nowMs - burst.sinceMs) < burstMs ? burst : { sinceMs: nowMs, floor: learned / 2 };
}

/**
 * How many background calls a holder can have: all that it needs if that is less than an equal part, so that others
 * can have the rest. When no process wants more, each also gets a part of what is left, for calls that come soon.
 */
function fairShare(shares: Readonly<Record<string, CallDemand>>, holder: string, learned: number): number {
  let left = Math.floor(learned);
  for (const { live } of Object.values(shares)) left -= live;
  const needs = Object.entries(shares)
    .filter(([, share]) => isWorking(share))
    .map(([name, { background, wantsMore }]) => ({ name, need: wantsMore ? Number.POSITIVE_INFINITY : background }))
    .toSorted((a, b) => (a.need === b.need ? (a.name < b.name ? -1 : 1) : a.need - b.need));
  let fair = 0;
  for (const [place, { name, need }] of needs.entries()) {
    const part = Math.max(1, Math.min(need, Math.floor(left / (needs.length - place))));
    if (name === holder) fair = part;
    left -= part;
  }
  return fair + Math.max(0, Math.floor(left / needs.length));
}

const latest = (a: number | null, b: number | null): number | null =>
  a === null || b === null ? (a ?? b) : Math.max(a, b);
