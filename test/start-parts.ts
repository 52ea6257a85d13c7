import { stopAll, type Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

/** Starts the parts in order. If one fails, stops all of them and rethrows. */
export async function startAll(parts: readonly Part[], logger: Logger): Promise<void> {
  try {
    for (const part of parts) await part.start?.();
  } catch (error) {
    await stopAll(parts, logger);
    throw error;
  }
}
