import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { GatewayError } from '#libs/kernel/errors.ts';
import { judgeTexts, type Judged, type TextWork } from './judge-texts.ts';
import { runWithin } from './run-within.ts';

// Below live work: on Linux a thread has a priority of its own (elsewhere this would slow the whole process down).
if (process.platform === 'linux' && !isMainThread) setPriority(0, 5);

export type ThreadWork = TextWork & { timeoutMs: number };

/** What was found until the time was over; `refusal`: a pattern or schema that cannot be used. */
export type ThreadFindings = {
  judged: Judged[];
  refusal: { code: string | null; message: string; param: string | null } | null;
};

/** Runs in a thread. The thread itself survives a time-out, except in the middle of something that cannot be stopped. */
export default function judgeInThread({ timeoutMs, ...work }: ThreadWork): ThreadFindings {
  const judged: Judged[] = [];
  try {
    runWithin(() => judgeTexts(work, judged), timeoutMs);
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    const { code, message, param } = error;
    return { judged, refusal: { code, message, param } };
  }
  return { judged, refusal: null };
}
