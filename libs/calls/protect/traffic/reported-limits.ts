import type { Target } from '#libs/calls/call.ts';
import type { Ended } from '#libs/calls/retry-waits.ts';
import type { Clock } from '#libs/kernel/clock.ts';

/** What is limited: the calls with one credential for one model. One object for each, in each process. */
export type LimitedCalls = Required<Pick<Target, 'workspaceId' | 'credentialId' | 'label' | 'provider'>> & {
  model: string;
  /** The end of the rate-limit wait, by the clock of the traffic; 0: there is none. */
  rateLimitedUntilMs: number;
};

/** The headers of the last answer, which are read only when they are shared. */
export type Report = {
  calls: LimitedCalls;
  headers: Readonly<Record<string, string>>;
  limitHeaders: Readonly<Record<string, string>> | undefined;
  atMs: number;
};

export type ReportedLimits = {
  /** Keeps what an answer says until it is taken, in place of what the answer before said. */
  note: (calls: LimitedCalls, ended: Ended) => void;
  /** Returns what was noted since the last time, and forgets it. */
  take: () => Report[];
  /** Keeps again what could not be shared, unless newer answers came meanwhile. */
  putBack: (reports: readonly Report[]) => void;
};

// Between two writes. What is beyond is noted with a later answer; one workspace never takes all of it.
const ofWorkspaceMax = 50;
const ofAllMax = 1_000;

/** Makes the notes of this process: what providers said of their limits in their last answers. */
export function createReportedLimits(clock: Clock): ReportedLimits {
  let noted = new Map<string, Map<LimitedCalls, Report>>();
  let size = 0;

  const keep = (report: Report): void => {
    const { calls } = report;
    const ofWorkspace = noted.get(calls.workspaceId) ?? new Map<LimitedCalls, Report>();
    if (!ofWorkspace.has(calls)) {
      if (size >= ofAllMax || ofWorkspace.size >= ofWorkspaceMax) return;
      size += 1;
      noted.set(calls.workspaceId, ofWorkspace);
    }
    ofWorkspace.set(calls, report);
  };

  return {
    note(calls, ended) {
      if (ended === null || 'error' in ended) return;
      if (ended.status !== 429 && ended.limitHeaders === undefined && !reportsLimits(ended.headers)) return;
      keep({ calls, headers: ended.headers, limitHeaders: ended.limitHeaders, atMs: clock.now() });
    },
    take() {
      const all = [...noted.values()].flatMap((ofWorkspace) => [...ofWorkspace.values()]);
      noted = new Map();
      size = 0;
      return all;
    },
    putBack(reports) {
      for (const one of reports) if (noted.get(one.calls.workspaceId)?.has(one.calls) !== true) keep(one);
    },
  };
}

function reportsLimits(headers: Readonly<Record<string, string>>): boolean {
  for (const name in headers) if (name.startsWith('x-ratelimit-')) return true;
  return false;
}
