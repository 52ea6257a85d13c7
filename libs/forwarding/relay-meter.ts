import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Usage } from './answer.ts';
import { openSseFraming } from './sse-framing.ts';
import { asRecord, readTokenUsage, readUsage } from './usage.ts';

/** Reads a copy of a body that passes untouched, for what it says of usage. Never throws: the body passes in any case. */
export type RelayMeter = {
  push: (chunk: Buffer) => void;
  read: () => { usage: Usage | null; model: string | null };
};

// What is kept of a body to be read at its end, and of one event of a stream; longer ones pass unread (images, audio).
const keptBytesMax = 1_048_576;
const unread = { usage: null, model: null };

/**
 * A meter for a body of this content type: JSON, or a stream of events whose last ones tell usage; others are not read, and
 * neither is JSON for which there is no memory.
 */
export function openRelayMeter(contentType: string, memory?: MemoryLease): RelayMeter {
  if (contentType.includes('text/event-stream')) return openStreamMeter();
  if (contentType.includes('json')) return openJsonMeter(memory);
  return { push: () => {}, read: () => unread };
}

function openJsonMeter(memory: MemoryLease | undefined): RelayMeter {
  const chunks: Buffer[] = [];
  let bytes = 0;
  let isKept = true;
  return {
    push: (chunk) => {
      bytes += chunk.length;
      isKept &&= bytes <= keptBytesMax && (memory === undefined || memory.tryCharge(chunk.length));
      if (isKept) chunks.push(chunk);
      else chunks.length = 0;
    },
    read: () => (chunks.length === 0 ? unread : usageOf(Buffer.concat(chunks).toString())),
  };
}

function openStreamMeter(): RelayMeter {
  let found: ReturnType<RelayMeter['read']> = unread;
  let isReadable = true;
  const framing = openSseFraming({
    onEvent: ({ data }) => {
      if (data.includes('"usage"')) found = usageOf(data);
    },
    onComment: () => {},
    eventCharsMax: keptBytesMax,
    tooLarge: () => new RangeError('an event is too large to be read'),
  });
  const attempt = (step: () => void): void => {
    if (!isReadable) return;
    try {
      step();
    } catch {
      isReadable = false;
    }
  };
  return {
    push: (chunk) => attempt(() => framing.push(chunk)),
    read: () => {
      attempt(() => framing.end());
      return found;
    },
  };
}

/** Usage and model of a body or of an event: at its top, or inside `response` (the Responses API's events). */
function usageOf(text: string): ReturnType<RelayMeter['read']> {
  try {
    const outer = asRecord(JSON.parse(text));
    const source = outer['usage'] === undefined ? asRecord(outer['response']) : outer;
    const { usage, model } = source;
    return { usage: readUsage(usage) ?? readTokenUsage(usage), model: typeof model === 'string' ? model : null };
  } catch {
    return unread;
  }
}
