/** How fast the large bodies of one workspace are read, all together. */
export type BytePace = {
  /** Counts bytes of the workspace, and returns how many ms to wait before more of it are read; 0: none. */
  spend: (workspaceId: string | null, bytes: number) => number;
};

/** Bodies that are not larger are read as they come. */
export const unpacedBytesMax = 262_144;

/** So much comes at the speed of the network: an image, but not the next of many bodies. */
const burstMs = 50;
const workspacesMax = 1_000;

/**
 * Lets the large bodies of one workspace take `bytesPerSecond` together. To read a MiB takes some 3 ms of the event loop,
 * whatever becomes of it: thirty callers at the speed of the network would leave nothing to others.
 */
export function createBytePace(bytesPerSecond: number, now: () => number = () => performance.now()): BytePace {
  const bytesPerMs = bytesPerSecond / 1_000;
  /** When each workspace has paid for what it sent. */
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
