import { GatewayError } from '#libs/kernel/errors.ts';
import { createThreadLane, type ThreadLaneOptions } from '#libs/threads/thread-lane.ts';
import { isQuick } from './checks/is-quick.ts';
import { checkTexts, type TimedFinding, type TextWork } from './check-texts.ts';
import type { ThreadFindings, ThreadWork } from './check-texts-worker.ts';
import type { TextCheck } from './checks/text-checks.ts';

type Caller = { workspaceId: string; signal: AbortSignal };

export type TextChecker = {
  /**
   * Checks the texts of one phase of a call: synchronously if that is certainly quick, otherwise in a thread and within
   * a time limit. Returns one result for each check. Checks that ran out of time have not passed (`guardrail_timeout`).
   * Throws invalid_request for a pattern or schema that cannot be used, `server_overloaded` when too many calls of the
   * workspace wait, and the reason of `signal`.
   */
  judge: (work: TextWork, caller: Caller) => TimedFinding[] | Promise<TimedFinding[]>;
  /**
   * Whether an expression matches in a text, with the same rules as for the checks of guardrails. An expression that
   * takes too long counts as not found.
   */
  search: (rule: string, text: string, caller: Caller) => boolean | Promise<boolean>;
  stats: () => { begun: number; running: number; waiting: number };
  stop: () => Promise<void>;
};

export type TextCheckerOptions = Pick<ThreadLaneOptions, 'threads' | 'waitingMax'> & {
  /**
   * The maximum time that the checks of one phase of a call can take together. Default 250 ms; ordinary ones take
   * microseconds.
   */
  timeoutMs?: number;
};

// Additional time for code that cannot be interrupted, and for starting a thread on a busy machine. Then the thread is
// killed.
const graceMs = 5_000;

/** Runs tenants' expressions and schemas without blocking other calls. */
export function createTextChecker({ timeoutMs = 250, ...options }: TextCheckerOptions): TextChecker {
  const lane = createThreadLane<ThreadWork, ThreadFindings>({
    ...options,
    module: new URL('./check-texts-worker.ts', import.meta.url),
    threadMemoryMb: 256,
    idleTimeoutMs: 10_000,
  });

  const outOfTime: TimedFinding = {
    verdict: false,
    data: {
      code: 'guardrail_timeout',
      explanation: `The guardrail checks of this call did not finish within ${timeoutMs} ms.`,
    },
    durationMs: timeoutMs,
  };

  const judgeInThread: TextChecker['judge'] = async (work, { workspaceId, signal }) => {
    const options = { timeoutMs: timeoutMs + graceMs, group: workspaceId, signal };
    const found = await lane.run({ ...work, timeoutMs }, options);
    const { judged, refusal } = found ?? { judged: [], refusal: null };
    if (refusal) {
      throw new GatewayError('invalid_request', refusal.code, refusal.message, { param: refusal.param });
    }
    return work.checks.map((_check, index) => judged[index] ?? outOfTime);
  };

  const judge: TextChecker['judge'] = (work, caller) => {
    if (!isQuick(work)) return judgeInThread(work, caller);
    const judged: TimedFinding[] = [];
    checkTexts(work, judged);
    return judged;
  };

  return {
    judge,
    search(rule, text, caller) {
      const check: TextCheck = {
        name: 'regexMatch',
        id: 'default.regexMatch',
        label: null,
        allowsMedia: false,
        parameters: { rule, not: false },
      };
      const texts = { said: [text], measured: [], unreadable: null };
      const isFound = ([judged]: TimedFinding[]): boolean => judged?.verdict === true;
      const judging = judge({ checks: [check], texts }, caller);
      return judging instanceof Promise ? judging.then(isFound) : isFound(judging);
    },
    stats: () => lane.stats(),
    stop: () => lane.stop(),
  };
}
