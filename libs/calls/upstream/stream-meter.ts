import type { Usage } from '#libs/calls/call.ts';
import { asRecord, readUsage } from './usage.ts';

/** What one payload turned out to be. `usage` is the chunk that holds nothing else. */
export type PayloadView = 'chunk' | 'usage' | 'error' | 'unreadable';

export type StreamMeter = {
  /** Reads a copy of the payload; the text itself goes on unchanged. */
  read: (payload: string) => PayloadView;
  usage: () => Usage | null;
  model: () => string | null;
  finishReason: () => string | null;
  /** At least one choice was seen, and each one seen was finished. */
  allFinished: () => boolean;
  /** A closing usage chunk made from what other chunks said, when the provider sent none of its own; else null. */
  missingUsageChunk: () => string | null;
};

/** Accounts for one stream of OpenAI-shaped chunks. */
export function createStreamMeter(): StreamMeter {
  const open = new Set<number>();
  const finished = new Set<number>();
  let usage: Usage | null = null;
  let usageHolder: Readonly<Record<string, unknown>> | null = null;
  let usageChunkSeen = false;
  let model: string | null = null;
  let finishReason: string | null = null;

  const readChoice = (choice: unknown): void => {
    const { index, finish_reason: reason } = asRecord(choice);
    const key = typeof index === 'number' ? index : 0;
    if (typeof reason !== 'string' || reason === '') {
      if (!finished.has(key)) open.add(key);
      return;
    }
    open.delete(key);
    finished.add(key);
    if (key === 0) finishReason = reason;
  };

  return {
    read: (payload) => {
      let parsed: unknown;
      try {
        parsed = JSON.parse(payload);
      } catch {
        return 'unreadable';
      }
      if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return 'unreadable';
      const chunk = parsed as Record<string, unknown>;
      if (chunk['error'] !== undefined && chunk['error'] !== null) return 'error';
      if (typeof chunk['model'] === 'string' && chunk['model'] !== '') model = chunk['model'];
      const { choices } = chunk;
      const empty = Array.isArray(choices) && choices.length === 0;
      if (Array.isArray(choices)) for (const choice of choices) readChoice(choice);
      const found = readUsage(chunk['usage']);
      if (found === null) return 'chunk';
      usage = found;
      usageHolder = chunk;
      usageChunkSeen ||= empty;
      return empty ? 'usage' : 'chunk';
    },
    usage: () => usage,
    model: () => model,
    finishReason: () => finishReason,
    allFinished: () => open.size === 0 && finished.size > 0,
    missingUsageChunk: () => {
      if (usageChunkSeen || usageHolder === null) return null;
      const { id, object, created, model: name, usage: counts } = usageHolder;
      return JSON.stringify({ id, object, created, model: name, choices: [], usage: counts });
    },
  };
}
