import { GatewayError } from '#libs/kernel/errors.ts';
import { createThreadLane, type ThreadLaneOptions } from '#libs/threads/thread-lane.ts';
import { isQuick } from './is-quick.ts';
import { judgeTexts, type Judged, type TextWork } from './judge-texts.ts';
import type { ThreadFindings, ThreadWork } from './judge-texts-worker.ts';
import type { TextCheck } from './text-checks.ts';

type Caller = { workspaceId: string; signal: AbortSignal };

export type TextJudge = {
  /**
   * Judges the texts of one phase of a call: at once when that is sure to be quick, otherwise in a thread and within its
   * time. One result for each check; those that there was no time for have not passed (`guardrail_timeout`). Throws
   * invalid_request for a pattern or schema that cannot be used, `server_overloaded` when too many of the workspace wait,
   * and the reason of `signal`.
   */
  judge: (work: TextWork, caller: Caller) => Judged[] | Promise<Judged[]>;
  /**
   * Whether an expression is found in a text: by the same rules as the checks of guardrails. One that takes too long
   * counts as not found.
   */
  search: (rule: string, text: string, caller: Caller) => boolean | Promise<boolean>;
  stats: () => { begun: number; running: number; waiting: number };
  stop: () => Promise<void>;
};

export type TextJudgeOptions = Pick<ThreadLaneOptions, 'threads' | 'waitingMax'> & {
  /** What the checks of one phase of a call may take together. Default 250 ms; sound ones take microseconds. */
  timeoutMs?: number;
};

// For what cannot be stopped from within, and the start of a thread on a busy machine: then the thread is killed.
const graceMs = 5_000;

/** Where tenants' expressions and schemas run, so that none of them holds up the calls of others. */
export function createTextJudge({ timeoutMs = 250, ...options }: TextJudgeOptions): TextJudge {
  const lane = createThreadLane<ThreadWork, ThreadFindings>({
    ...options,
    module: new URL('./judge-texts-worker.ts', import.meta.url),
    threadMemoryMb: 256,
    idleTimeoutMs: 10_000,
  });

  const outOfTime: Judged = {
    verdict: false,
    data: {
      code: 'guardrail_timeout',
      explanation: `The checks of this call take too long: there is no verdict within ${timeoutMs} ms.`,
    },
    durationMs: timeoutMs,
  };

  const judgeInThread: TextJudge['judge'] = async (work, { workspaceId, signal }) => {
    const options = { timeoutMs: timeoutMs + graceMs, group: workspaceId, signal };
    const found = await lane.run({ ...work, timeoutMs }, options);
    const { judged, refusal } = found ?? { judged: [], refusal: null };
    if (refusal) {
      throw new GatewayError('invalid_request', refusal.code, refusal.message, { param: refusal.param });
    }
    return work.checks.map((_check, index) => judged[index] ?? outOfTime);
  };

  const judge: TextJudge['judge'] = (work, caller) => {
    if (!isQuick(work)) return judgeInThread(work, caller);
    const judged: Judged[] = [];
    judgeTexts(work, judged);
    return judged;
  };

  return {
    judge,
    search(rule, text, caller) {
      const check: TextCheck = { name: 'regexMatch', id: 'default.regexMatch', parameters: { rule, not: false } };
      const texts = { said: [text], measured: [], hasUnreadable: false };
      const isFound = ([judged]: Judged[]): boolean => judged?.verdict === true;
      const judging = judge({ checks: [check], texts }, caller);
      return judging instanceof Promise ? judging.then(isFound) : isFound(judging);
    },
    stats: () => lane.stats(),
    stop: () => lane.stop(),
  };
}
