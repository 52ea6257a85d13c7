import { SchemaNeedsThread } from './lines/check-response-schema.ts';
import type { SliceResult, SliceTask } from './slice-task.ts';

// At most 20 ms of the loop, for the worst lines that we know. A thread that has to be started takes 0.4 to 0.8 s, which was
// most of the time of a small batch.
const bytesMax = 131_072;
const linesMax = 500;

/** Checks a short slice on the event loop. Returns null for one that has to be checked in a thread. */
export async function checkOnLoop(task: SliceTask): Promise<SliceResult | null> {
  if (task.bytes.length > bytesMax || hasMoreLines(task.bytes, linesMax)) return null;
  const { default: validateSlice } = await import('./validate-slice-worker.ts');
  try {
    return validateSlice({ ...task, rules: { ...task.rules, onLoop: true } });
  } catch (error) {
    if (error instanceof SchemaNeedsThread) return null;
    throw error;
  }
}

function hasMoreLines(bytes: Uint8Array, max: number): boolean {
  let at = -1;
  for (let line = 1; line <= max; line += 1) {
    at = bytes.indexOf(0x0a, at + 1);
    if (at === -1) return false;
  }
  return at < bytes.length - 1;
}
