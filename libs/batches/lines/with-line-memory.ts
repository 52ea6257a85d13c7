import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { whenAvailable } from '#libs/kernel/when-available.ts';
import type { Permits } from './permit-pool.ts';

/**
 * Adds the memory of one line to its permit. The permit is acquired first. Otherwise lines could hold memory while they
 * wait for a permit, and running calls could wait for that memory before they release their permits: a deadlock. A line
 * that waits for memory holds its permit, but its group has only a share of the permits (call-shares.ts). The lease
 * holds the bytes that were acquired and not yet released. While the line calls, its answer first uses the bytes that
 * the line itself does not need, and is charged in addition beyond that. `lineBytes`: memory of the line itself,
 * including its parsed value if the call needs one.
 */
export function withLineMemory(calls: Permits, lease: MemoryLease, lineBytes: number): Permits {
  let heldBytes = 0;
  const keep = (bytes: number): void => {
    heldBytes = bytes;
    lease.become(bytes);
  };
  return {
    acquire(bytes, options = {}) {
      const hold = (isReserved: boolean): boolean => {
        if (isReserved) {
          heldBytes = bytes;
          lease.tryCharge(Math.min(lineBytes, bytes));
        } else calls.release(1, 0);
        return isReserved;
      };
      return whenAvailable(
        calls.acquire(0, options),
        (isAcquired) => isAcquired && whenAvailable(lease.reserve(bytes, options.signal ?? never), hold),
      );
    },
    release(released, bytes, isAnswered) {
      keep(heldBytes - bytes);
      if (released > 0) calls.release(released, 0, isAnswered);
    },
  };
}

const never = new AbortController().signal;
