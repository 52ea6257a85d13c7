/** Limits how fast the large bodies of one workspace are read in total. */
export type BytePace = {
  /** Counts bytes of the workspace. Returns how many ms to wait before more of them are read; 0 means no wait. */
  spend: (workspaceId: string | null, bytes: number) => number;
};

/** Bodies up to this size are not limited. */
export const unpacedBytesMax = 262_144;

/** A burst of this length is read at full speed: enough for one image, but not for many bodies in a row. */
const burstMs = 50;
const workspacesMax = 1_000;

/**
 * Limits the large bodies of one workspace to `bytesPerSecond` in total. Reading a MiB takes about 3 ms of the event loop,
 * even if the body is rejected later, so thirty callers at network speed would leave no time for anyone else.
 */
export function createBytePace(bytesPerSecond: number, now: () => number = () => performance.now()): BytePace {
  const bytesPerMs = bytesPerSecond / 1_000;
  /** The time up to which the bytes that each workspace has sent use up its rate. */
  const paidAtMs = new Map<string | null, number>();
  return {
    spend(workspaceId, bytes) {
      const at = now();
      if (paidAtMs.size >= workspacesMax) for (const [id, paidAt] of paidAtMs) if (paidAt <= at) paidAtMs.delete(id);
      const paidAt = Math.max(paidAtMs.get(workspaceId) ?? 0, at) + bytes / bytesPerMs;
      paidAtMs.set(workspaceId, paidAt);
      return Math.max(0, paidAt - at - burstMs);
    },
  };
}
