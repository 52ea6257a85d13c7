import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { GatewayError } from '#libs/kernel/errors.ts';
import { checkTexts, type TimedFinding, type TextWork } from './check-texts.ts';
import { runWithin } from '#libs/threads/run-within.ts';

// Lower priority than live work. On Linux each thread has its own priority; elsewhere this would slow down the whole
// process.
if (process.platform === 'linux' && !isMainThread) setPriority(0, 5);

export type ThreadWork = TextWork & { timeoutMs: number };

/** The results up to the time limit. `refusal`: a pattern or schema that cannot be used. */
export type ThreadFindings = {
  judged: TimedFinding[];
  refusal: { code: string | null; message: string; param: string | null } | null;
};

/** Runs in a thread, which survives a timeout unless it is in code that cannot be interrupted. */
export default function judgeInThread({ timeoutMs, ...work }: ThreadWork): ThreadFindings {
  const judged: TimedFinding[] = [];
  try {
    runWithin(() => checkTexts(work, judged), timeoutMs);
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    const { code, message, param } = error;
    return { judged, refusal: { code, message, param } };
  }
  return { judged, refusal: null };
}
