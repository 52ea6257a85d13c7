import { createThreadLane } from '#libs/threads/thread-lane.ts';
import type { OutputVerdict, OutputWork } from './check-output-worker.ts';

export type OutputChecker = {
  /**
   * Checks an answer in a thread. Workspaces take turns. Never rejects for anything in the schema or the answer. Throws
   * the reason of `signal`.
   */
  check: (work: OutputWork, caller: { workspaceId: string; signal: AbortSignal }) => Promise<OutputVerdict>;
  stop: () => Promise<void>;
};

/**
 * More than any check takes on a busy machine. The thread limits the time itself, so this only ends code that cannot be
 * interrupted.
 */
const timeoutMs = 30_000;

/** Starts threads for the checks when they are first needed. */
export function createOutputChecker({ threads }: { threads: number }): OutputChecker {
  const lane = createThreadLane<OutputWork, OutputVerdict>({
    threads,
    module: new URL('./check-output-worker.ts', import.meta.url),
    threadMemoryMb: 512,
    idleTimeoutMs: 10_000,
  });
  return {
    async check({ operation, format, answer }, { workspaceId, signal }) {
      // Both can be parts of buffers that are much larger, which would be copied whole.
      const work = { operation, format: new Uint8Array(format), answer: new Uint8Array(answer) };
      const moved = [work.format.buffer, work.answer.buffer];
      const verdict = await lane.run(work, { timeoutMs, group: workspaceId, signal, moved });
      return verdict ?? { kind: 'failed', problem: 'The answer could not be checked.', isFinal: true };
    },
    stop: () => lane.stop(),
  };
}
