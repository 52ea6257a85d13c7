import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Room } from './slots.ts';

/**
 * The room of one line with its memory beside its place among the calls. Memory first, because who waits for it must not keep
 * calls from others; a line that waits for neither keeps both. The lease holds what was acquired and is not released yet;
 * while the line calls, its answer is charged to it beside that, or from it, where it was more than the line itself needs.
 * `lineBytes`: of the line, parsed where its call has to.
 */
export function withLineMemory(calls: Room, lease: MemoryLease, lineBytes: number): Room {
  let heldBytes = 0;
  const keep = (bytes: number): void => {
    heldBytes = bytes;
    lease.become(bytes);
  };
  return {
    async acquire(bytes, options = {}) {
      if (!(await lease.reserve(bytes, options.signal ?? never))) return false;
      if (!(await calls.acquire(0, options))) {
        keep(0);
        return false;
      }
      heldBytes = bytes;
      lease.tryCharge(Math.min(lineBytes, bytes));
      return true;
    },
    release(released, bytes, isAnswered) {
      keep(heldBytes - bytes);
      if (released > 0) calls.release(released, 0, isAnswered);
    },
  };
}

const never = new AbortController().signal;
