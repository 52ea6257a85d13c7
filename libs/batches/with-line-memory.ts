import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Room } from './slots.ts';

/**
 * The room of one line with its memory beside its place among the calls. The place first: lines that held memory and waited
 * for a place would keep it from the calls under way, which need it for their answers before they give up a place, and
 * neither would go on. While it waits for memory a line keeps its place, of which its group has only a share (call-shares.ts).
 * The lease holds what was acquired and is not released yet; while the line calls, its answer is charged to it beside that,
 * or from it, where it was more than the line itself needs.
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
      if (!(await calls.acquire(0, options))) return false;
      if (!(await lease.reserve(bytes, options.signal ?? never))) {
        calls.release(1, 0);
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
